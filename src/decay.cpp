#include "decay.h"

#include <cmath>
#include <numbers>

namespace lasp {

float head_decay_power(float g, int64_t n) {
  if (n == 0) return 1.0f;  // also where g is -inf
  double exponent = static_cast<double>(g) / std::numbers::ln2;
  const double whole = std::nearbyint(exponent);
  if (whole != 0 && std::abs(exponent - whole) <= std::abs(whole) * 0x1p-24) exponent = whole;
  return static_cast<float>(std::exp2(exponent * static_cast<double>(n)));
}

}  // namespace lasp
