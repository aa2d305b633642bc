// The AdamW step.
#include "optimizer.hpp"

#include <algorithm>
#include <cmath>

namespace train_lm {
namespace {

constexpr double kBeta1 = 0.9, kBeta2 = 0.98;
constexpr float kEpsilon = 1e-5f;  // well below a usual entry (1e-3), above those that are rounding errors alone

}  // namespace

Optimizer::Optimizer(const Layout &layout, const OptimizerSettings &settings, MemoryMeter &meter)
    : layout_(layout), settings_(settings), first_(meter, layout.size()), second_(meter, layout.size()) {}

double Optimizer::rate() const {
  if (step_ < settings_.warmup) return settings_.peak_rate * (step_ + 1) / settings_.warmup;
  const int rest = std::max(1, settings_.steps - settings_.warmup);
  const double done = std::min(1.0, static_cast<double>(step_ - settings_.warmup) / rest);
  return settings_.peak_rate * (0.1 + 0.45 * (1.0 + std::cos(3.141592653589793 * done)));
}

StepStatistics Optimizer::step(const float *gradient, float *parameters) {
  StepStatistics statistics;
  double squares = 0.0;
  for (std::size_t i = 0; i < layout_.size(); ++i) {
    squares += static_cast<double>(gradient[i]) * gradient[i];
    statistics.norm_one += std::fabs(static_cast<double>(gradient[i]));
  }
  statistics.norm = std::sqrt(squares);
  statistics.rate = rate();
  ++step_;
  const float shrink = static_cast<float>(std::min(1.0, settings_.clip / std::max(statistics.norm, 1e-30)));
  const float b1 = static_cast<float>(kBeta1), b2 = static_cast<float>(kBeta2);
  const float size = static_cast<float>(statistics.rate / (1.0 - std::pow(kBeta1, step_)));
  const float second_scale = static_cast<float>(1.0 / (1.0 - std::pow(kBeta2, step_)));
  for (const Tensor &tensor : layout_.tensors()) {
    const float keep =
        static_cast<float>(1.0 - (tensor.is_matrix() ? statistics.rate * settings_.weight_decay : 0.0));
    float *p = parameters + tensor.offset, *m = first_.data() + tensor.offset, *v = second_.data() + tensor.offset;
    const float *g = gradient + tensor.offset;
#pragma omp simd
    for (std::size_t i = 0; i < tensor.size(); ++i) {
      const float gradient_i = g[i] * shrink;
      m[i] = b1 * m[i] + (1.0f - b1) * gradient_i;
      v[i] = b2 * v[i] + (1.0f - b2) * gradient_i * gradient_i;
      p[i] = p[i] * keep - size * m[i] / (std::sqrt(v[i] * second_scale) + kEpsilon);
    }
  }
  return statistics;
}

}  // namespace train_lm
