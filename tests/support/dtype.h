// Conversions between float32 and the 16-bit formats, round to nearest, ties to even. Written apart from the
// library's own, which they are there to test.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include <lasp/lasp.h>

namespace lasp_test {

inline size_t dtype_bytes(int32_t dtype) { return dtype == LASP_FLOAT32 ? 4 : 2; }

inline double power_of_two(int exponent) {
  return std::bit_cast<double>(static_cast<uint64_t>(exponent + 1023) << 52);
}

// Rounds to `digits` significant bits, with the format's smallest exponent; exact arithmetic on doubles.
inline double round_to(double x, int digits, int min_exponent) {
  if (x == 0.0 || !(std::fabs(x) < 0x1p900)) return x;                                     // in no format finite
  const int exponent = static_cast<int>(std::bit_cast<uint64_t>(x) >> 52 & 0x7ff) - 1022;  // |x| < 2^exponent
  const int unit = std::max(exponent, min_exponent) - digits;
  const double large = 0x1.8p52 * power_of_two(unit);  // its neighbours are that unit away
  return std::copysign(std::fabs(x) + large - large, x);
}

// The nearest value of `dtype`, as a float. Beyond its largest finite value float16 becomes infinite.
inline float round_to_dtype(double x, int32_t dtype) {
  if (dtype == LASP_BFLOAT16) return static_cast<float>(round_to(x, 8, -125));
  if (dtype != LASP_FLOAT16) return static_cast<float>(x);
  const double rounded = round_to(x, 11, -13);
  return std::fabs(rounded) > 65504.0 ? std::copysign(INFINITY, static_cast<float>(x))
                                      : static_cast<float>(rounded);
}

inline uint16_t encode_16(float x, int32_t dtype) {
  uint32_t bits = 0;
  const float value = round_to_dtype(x, dtype);
  std::memcpy(&bits, &value, sizeof bits);
  if (dtype == LASP_BFLOAT16) return static_cast<uint16_t>(bits >> 16);
  const uint32_t sign = bits >> 16 & 0x8000u;
  if (std::isnan(value)) return static_cast<uint16_t>(sign | 0x7e00u);
  if (std::isinf(value)) return static_cast<uint16_t>(sign | 0x7c00u);
  const double magnitude = std::fabs(static_cast<double>(value));
  if (magnitude < 0x1p-14) return static_cast<uint16_t>(sign | static_cast<uint32_t>(magnitude * 0x1p24));
  return static_cast<uint16_t>(sign | (((bits & 0x7fffffffu) - 0x38000000u) >> 13));
}

inline float decode_16(uint16_t x, int32_t dtype) {
  if (dtype == LASP_BFLOAT16) {
    const uint32_t bits = static_cast<uint32_t>(x) << 16;
    float value = 0;
    std::memcpy(&value, &bits, sizeof value);
    return value;
  }
  const int exponent = x >> 10 & 0x1f, fraction = x & 0x3ff;
  const float sign = x & 0x8000 ? -1.0f : 1.0f;
  if (exponent == 31) return fraction ? NAN : sign * INFINITY;
  if (exponent == 0) return sign * 0x1p-24f * static_cast<float>(fraction);
  return sign * static_cast<float>(power_of_two(exponent - 25)) * static_cast<float>(fraction + 1024);
}

inline void store_element(void *to, float x, int32_t dtype) {
  if (dtype == LASP_FLOAT32) {
    std::memcpy(to, &x, 4);
  } else {
    const uint16_t bits = encode_16(x, dtype);
    std::memcpy(to, &bits, 2);
  }
}

inline float load_element(const void *from, int32_t dtype) {
  if (dtype == LASP_FLOAT32) {
    float x = 0;
    std::memcpy(&x, from, 4);
    return x;
  }
  uint16_t bits = 0;
  std::memcpy(&bits, from, 2);
  return decode_16(bits, dtype);
}

}  // namespace lasp_test
