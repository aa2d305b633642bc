// The product of 16 rows and 8 columns, which mma and wgmma consist of: sums over an instruction's 8 or 16 products
// are double, so that their order does not matter, and rounded once.
#pragma once

#include <immintrin.h>

namespace emulator {

// Rows of A, from the values of its fragment or tile.
struct Left {
  alignas(32) double x[16][16];
};
// 8 columns of B. Columns 2q of 8 come first, in places q, then columns 2q + 1, in places 4 + q: as the
// accumulators have them, of which a register is a row of four lanes after the other.
struct Right {
  alignas(32) double x[16][8];
};

// Register 2r + e of lane 4i + q is the accumulator of row 8r + i, column 2q + e ("Matrix fragments for
// mma.m16n8k16 with floating point type", and "wgmma.mma_async", register fragments of D). `d` may be `c`.
template <int kSum>
inline void multiply(const Left &a, const Right &b, const float *const c[4], float *const d[4]) {
  for (int first = 0; first < 16; first += 4) {
    const int r = first / 8, at = first % 8 * 4;
    __m256d even[4], odd[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      even[i] = _mm256_cvtps_pd(_mm_loadu_ps(c[2 * r] + at + 4 * i));
      odd[i] = _mm256_cvtps_pd(_mm_loadu_ps(c[2 * r + 1] + at + 4 * i));
    }
    for (int k = 0; k < kSum; ++k) {
      const __m256d y = _mm256_load_pd(b.x[k]), z = _mm256_load_pd(b.x[k] + 4);
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        const __m256d x = _mm256_broadcast_sd(&a.x[first + i][k]);
        even[i] = _mm256_fmadd_pd(x, y, even[i]);
        odd[i] = _mm256_fmadd_pd(x, z, odd[i]);
      }
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      _mm_storeu_ps(d[2 * r] + at + 4 * i, _mm256_cvtpd_ps(even[i]));
      _mm_storeu_ps(d[2 * r + 1] + at + 4 * i, _mm256_cvtpd_ps(odd[i]));
    }
  }
}

}  // namespace emulator
