// The AdamW step.
#include "optimizer.hpp"

#include <algorithm>
#include <cmath>

namespace train_lm {
namespace {

constexpr double kBeta1 = 0.9, kBeta2 = 0.98;
constexpr float kEpsilon = 1e-5f;  // well below a usual entry (1e-3), above those that are rounding errors alone

}  // namespace

Optimizer::Optimizer(const Layout &layout, const OptimizerSettings &settings, Device &device)
    : layout_(layout),
      settings_(settings),
      device_(device),
      first_(device, layout.size()),
      second_(device, layout.size()) {}

double Optimizer::rate() const {
  if (step_ < settings_.warmup) return settings_.peak_rate * (step_ + 1) / settings_.warmup;
  const int rest = std::max(1, settings_.steps - settings_.warmup);
  const double done = std::min(1.0, static_cast<double>(step_ - settings_.warmup) / rest);
  return settings_.peak_rate * (0.1 + 0.45 * (1.0 + std::cos(3.141592653589793 * done)));
}

double Optimizer::step(const float *gradient, const double *squares, Parameters &parameters) {
  const double now = rate();
  ++step_;
  AdamStep step;
  step.clip = static_cast<float>(settings_.clip);
  step.beta1 = static_cast<float>(kBeta1), step.beta2 = static_cast<float>(kBeta2), step.epsilon = kEpsilon;
  step.size = static_cast<float>(now / (1.0 - std::pow(kBeta1, step_)));
  step.second_scale = static_cast<float>(1.0 / (1.0 - std::pow(kBeta2, step_)));
  step.keep = static_cast<float>(1.0 - now * settings_.weight_decay);
  device_.adam(step, gradient, squares, layout_.size(), layout_.matrices_end(),
               {parameters.masters(), first_.data(), second_.data(), parameters.matrices()});
  return now;
}

}  // namespace train_lm
