#include "core/decay.h"

#include <limits>
#include <numbers>

namespace lasp {
namespace {

constexpr double kWeakest = -0.5;  // the weakest log decay that is kept as exp(g)

double exponent_of(float g) {
  const double exponent = static_cast<double>(g) / std::numbers::ln2;
  const double whole = std::nearbyint(exponent);
  return whole != 0 && std::abs(exponent - whole) <= std::abs(whole) * 0x1p-24 ? whole : exponent;
}

float strong_code(double decay) {
  return decay < std::numeric_limits<float>::min() ? kForgetsAll : static_cast<float>(decay);
}

}  // namespace

float decay_code(double log_decay) {
  if (log_decay <= kWeakest || log_decay > 0) return strong_code(std::exp(log_decay));
  return std::copysign(static_cast<float>(std::expm1(log_decay)), -1.0f);
}

double decay_value(float code) { return std::signbit(code) ? 1.0 + static_cast<double>(code) : double{code}; }

float compose_decays(float later, float earlier) {
  const double decay = decay_value(later) * decay_value(earlier);
  if (decay <= std::exp(kWeakest) || decay > 1) return strong_code(decay);
  return std::copysign(static_cast<float>(decay - 1), -1.0f);
}

float head_decay_power(float g, int64_t n) {
  if (n == 0) return 1.0f;  // also where g is -inf
  return static_cast<float>(std::exp2(exponent_of(g) * static_cast<double>(n)));
}

float head_decay_code(float g, int64_t n) {
  if (n == 0) return kKeepsAll;
  return decay_code(exponent_of(g) * static_cast<double>(n) * std::numbers::ln2);
}

}  // namespace lasp
