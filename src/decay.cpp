#include "decay.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

namespace lasp {
namespace {

double exponent_of(float g) {
  const double exponent = static_cast<double>(g) / std::numbers::ln2;
  const double whole = std::nearbyint(exponent);
  return whole != 0 && std::abs(exponent - whole) <= std::abs(whole) * 0x1p-24 ? whole : exponent;
}

}  // namespace

float head_decay_power(float g, int64_t n) {
  if (n == 0) return 1.0f;  // also where g is -inf
  return static_cast<float>(std::exp2(exponent_of(g) * static_cast<double>(n)));
}

SplitDecay head_decay_split(float g) {
  const double exponent = exponent_of(g), whole = std::min(std::nearbyint(exponent), 127.0);
  if (!(exponent >= -90.0 && exponent <= 128.0)) {  // also where g is NaN
    const float power = head_decay_power(g, 1);
    return {power < std::numeric_limits<float>::min() ? 0.0f : power, 0.0f};
  }
  const double base = std::exp2(whole);
  return {static_cast<float>(base), static_cast<float>(base * std::expm1((exponent - whole) * std::numbers::ln2))};
}

}  // namespace lasp
