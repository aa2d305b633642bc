// Conversion between the element types of tensors and float32, for kernels.h.
#pragma once

#include "kernels.h"
#include "stream.h"
#include "vec.h"

namespace lasp::cpu {
namespace {

typedef uint16_t ShortVec __attribute__((vector_size(16)));

LASP_INLINE Vec from_bfloat16(const ShortVec &x) {
  return reinterpret_cast<Vec>(__builtin_convertvector(x, UIntVec) << 16);
}

LASP_INLINE ShortVec to_bfloat16(const Vec &x) {
  const UIntVec bits = reinterpret_cast<UIntVec>(x);
  const UIntVec rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const UIntVec quiet = (bits >> 16) | 0x40;  // a NaN whose payload lies in the lost bits must stay one
  const UIntVec nan = reinterpret_cast<UIntVec>(x != x);
  return __builtin_convertvector((rounded & ~nan) | (quiet & nan), ShortVec);
}

#ifdef LASP_F16C
LASP_INLINE Vec from_float16(const ShortVec &x) {
  return reinterpret_cast<Vec>(_mm256_cvtph_ps(reinterpret_cast<__m128i>(x)));
}
LASP_INLINE ShortVec to_float16(const Vec &x) {
  return reinterpret_cast<ShortVec>(_mm256_cvtps_ph(reinterpret_cast<__m256>(x), _MM_FROUND_TO_NEAREST_INT));
}
#else
// The exponent is moved by a multiplication with a power of two, which also takes care of subnormals.
LASP_INLINE Vec from_float16(const ShortVec &x) {
  const UIntVec bits = __builtin_convertvector(x, UIntVec);
  const Vec magnitude = reinterpret_cast<Vec>((bits & 0x7fff) << 13) * 0x1p112f;
  const UIntVec special = reinterpret_cast<UIntVec>((bits & 0x7c00) == 0x7c00) & 0x7f800000;  // infinity, NaN
  return reinterpret_cast<Vec>(reinterpret_cast<UIntVec>(magnitude) | special | ((bits & 0x8000) << 16));
}
LASP_INLINE ShortVec to_float16(const Vec &x) {
  const UIntVec bits = reinterpret_cast<UIntVec>(x);
  const UIntVec magnitude = bits & 0x7fffffff;
  // Normal results: round the low 13 bits, then move the exponent's bias from 127 to 15.
  const UIntVec normal = (magnitude + 0xfff + ((magnitude >> 13) & 1) - (112u << 23)) >> 13;
  // Subnormal results: adding 1/2 leaves the rounded count of 2^-24 in the low bits.
  const UIntVec small = reinterpret_cast<UIntVec>(reinterpret_cast<Vec>(magnitude) + 0.5f) - 0x3f000000;
  const UIntVec is_small = reinterpret_cast<UIntVec>(magnitude < 0x38800000);
  const UIntVec is_large = reinterpret_cast<UIntVec>(magnitude >= 0x477ff000);  // rounds to infinity
  const UIntVec is_nan = reinterpret_cast<UIntVec>(magnitude > 0x7f800000);
  UIntVec half = (small & is_small) | (normal & ~is_small);
  half = (0x7c00u & is_large) | (half & ~is_large);
  half = half | ((0x200u | ((magnitude >> 13) & 0x3ff)) & is_nan);
  return __builtin_convertvector(half | ((bits >> 16) & 0x8000), ShortVec);
}
#endif

template <Vec (*convert)(const ShortVec &)>
LASP_INLINE void load_short(float *to, int64_t to_ld, const uint16_t *from, int64_t from_ld, int64_t rows,
                            int64_t cols) {
  for (int64_t i = 0; i < rows; ++i, to += to_ld, from += from_ld) {
    for (int64_t c = 0; c < cols; c += kLanes) store(to + c, convert(load_as<ShortVec>(from + c)));
  }
}

template <ShortVec (*convert)(const Vec &)>
LASP_INLINE void store_short(uint16_t *to, int64_t to_ld, const float *from, int64_t from_ld, int64_t rows,
                             int64_t cols, bool stream) {
  uint16_t room[kMostCols];
  for (int64_t i = 0; i < rows; ++i, to += to_ld, from += from_ld) {
    uint16_t *row = stream ? room : to;
    for (int64_t c = 0; c < cols; c += kLanes) store_as(row + c, convert(load(from + c)));
    if (stream) stream_row(to, room, cols * 2);
  }
}

constexpr int64_t kAhead = 4;  // of rows that are far apart, for which the processor does not look ahead itself

LASP_INLINE void copy_rows(float *to, int64_t to_ld, const float *from, int64_t from_ld, int64_t rows,
                           int64_t cols) {
  for (int64_t i = 0; i < rows; ++i, to += to_ld, from += from_ld) {
    if (from_ld >= kFarRows && i + kAhead < rows)
      for (int64_t c = 0; c < cols; c += 2 * kLanes) __builtin_prefetch(from + kAhead * from_ld + c);
    for (int64_t c = 0; c < cols; c += kLanes) store(to + c, load(from + c));
  }
}

LASP_INLINE void stream_rows(float *to, int64_t to_ld, const float *from, int64_t from_ld, int64_t rows,
                             int64_t cols) {
  if (to_ld == cols && from_ld == cols) return stream_row(to, from, rows * cols * 4);
  for (int64_t i = 0; i < rows; ++i) stream_row(to + i * to_ld, from + i * from_ld, cols * 4);
}

void load_rows(float *to, int64_t to_ld, const void *from, int64_t from_ld, int64_t rows, int64_t cols,
               DType type) {
  switch (type) {
    case DType::kFloat32: copy_rows(to, to_ld, static_cast<const float *>(from), from_ld, rows, cols); break;
    case DType::kBFloat16:
      load_short<from_bfloat16>(to, to_ld, static_cast<const uint16_t *>(from), from_ld, rows, cols);
      break;
    case DType::kFloat16:
      load_short<from_float16>(to, to_ld, static_cast<const uint16_t *>(from), from_ld, rows, cols);
      break;
  }
}

void store_rows(void *to, int64_t to_ld, const float *from, int64_t from_ld, int64_t rows, int64_t cols, DType type,
                bool stream) {
  switch (type) {
    case DType::kFloat32:
      if (stream) {
        stream_rows(static_cast<float *>(to), to_ld, from, from_ld, rows, cols);
      } else {
        copy_rows(static_cast<float *>(to), to_ld, from, from_ld, rows, cols);
      }
      break;
    case DType::kBFloat16:
      store_short<to_bfloat16>(static_cast<uint16_t *>(to), to_ld, from, from_ld, rows, cols, stream);
      break;
    case DType::kFloat16:
      store_short<to_float16>(static_cast<uint16_t *>(to), to_ld, from, from_ld, rows, cols, stream);
      break;
  }
  if (stream) stream_fence();
}

}  // namespace
}  // namespace lasp::cpu
