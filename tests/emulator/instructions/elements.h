// Values of elements of 16 bits, eight at a time (convert.h has those of one), and matrices of them.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace emulator {

// The values of eight that lie one after the other; kEvenFirst: elements 0, 2, 4, 6, 1, 3, 5, 7.
template <bool kBFloat16, bool kEvenFirst = false>
inline void unpack(const void *from, double *to) {
  __m128i packed = _mm_loadu_si128(static_cast<const __m128i *>(from));
  if constexpr (kEvenFirst)
    packed = _mm_shuffle_epi8(packed, _mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15));
  __m256 values;
  if constexpr (kBFloat16)
    values = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(packed), 16));
  else
    values = _mm256_cvtph_ps(packed);
  _mm256_storeu_pd(to, _mm256_cvtps_pd(_mm256_castps256_ps128(values)));
  _mm256_storeu_pd(to + 4, _mm256_cvtps_pd(_mm256_extractf128_ps(values, 1)));
}

// Of an 8 x 8 matrix: rows i and i + 4 are interleaved, three times over. `to` may be `from`.
inline void transpose(const uint16_t (&from)[8][8], uint16_t (&to)[8][8]) {
  __m128i x[8], y[8];
  for (int i = 0; i < 8; ++i) x[i] = _mm_loadu_si128(reinterpret_cast<const __m128i *>(from[i]));
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    y[2 * i] = _mm_unpacklo_epi16(x[i], x[i + 4]);
    y[2 * i + 1] = _mm_unpackhi_epi16(x[i], x[i + 4]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    x[2 * i] = _mm_unpacklo_epi16(y[i], y[i + 4]);
    x[2 * i + 1] = _mm_unpackhi_epi16(y[i], y[i + 4]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    _mm_storeu_si128(reinterpret_cast<__m128i *>(to[2 * i]), _mm_unpacklo_epi16(x[i], x[i + 4]));
    _mm_storeu_si128(reinterpret_cast<__m128i *>(to[2 * i + 1]), _mm_unpackhi_epi16(x[i], x[i + 4]));
  }
}

// Columns that lie one after the other as eight rows of Right (product.h).
template <bool kBFloat16>
inline void unpack_columns(const uint16_t (&columns)[8][8], double (*rows)[8]) {
  uint16_t turned[8][8];
  transpose(columns, turned);
  for (int k = 0; k < 8; ++k) unpack<kBFloat16, true>(turned[k], rows[k]);
}

}  // namespace emulator
