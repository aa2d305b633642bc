// float32 to bfloat16 and float16 and back, rounding to nearest even.
#pragma once

#include <lasp/lasp.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace bench {

inline size_t dtype_bytes(int32_t dtype) { return dtype == LASP_FLOAT32 ? 4 : 2; }

inline uint16_t to_bfloat16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
inline float from_bfloat16(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

inline uint16_t to_float16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // rounds to infinity
  if (magnitude < 0x38800000u) {
    // Subnormal: adding 0.5 leaves the value, in units of 2^-24 and rounded, in the low bits.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000u));
  }
  return static_cast<uint16_t>(sign | ((magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13));
}
inline float from_float16(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1fu, fraction = bits & 0x3ffu;
  if (exponent == 0) {
    const float value = static_cast<float>(fraction) * 0x1p-24f;
    return sign != 0 ? -value : value;
  }
  const uint32_t wide = exponent == 31 ? 0xffu : exponent + 112;
  return std::bit_cast<float>(sign | (wide << 23) | (fraction << 13));
}

inline float load(const void *data, int64_t index, int32_t dtype) {
  if (dtype == LASP_FLOAT32) return static_cast<const float *>(data)[index];
  const uint16_t bits = static_cast<const uint16_t *>(data)[index];
  return dtype == LASP_BFLOAT16 ? from_bfloat16(bits) : from_float16(bits);
}
inline void store(void *data, int64_t index, int32_t dtype, float value) {
  if (dtype == LASP_FLOAT32)
    static_cast<float *>(data)[index] = value;
  else
    static_cast<uint16_t *>(data)[index] = dtype == LASP_BFLOAT16 ? to_bfloat16(value) : to_float16(value);
}
inline float rounded(float value, int32_t dtype) {
  if (dtype == LASP_FLOAT32) return value;
  return dtype == LASP_BFLOAT16 ? from_bfloat16(to_bfloat16(value)) : from_float16(to_float16(value));
}

}  // namespace bench
