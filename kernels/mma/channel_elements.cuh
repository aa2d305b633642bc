// What a lane holds of 16 channels by 16 tokens in the backward walks with per-channel decay, here and in
// ../hopper/channel_backward.h: conversions, and sums along tokens.
#pragma once

#include "ptx.cuh"

namespace lasp::gpu::mma::channel {

// A log2 decay that is 0 in float32.
constexpr float kNothing = -126;

// What a lane has of a warp's 16 channels by 16 tokens, as of the fragments: channels r and r + 8, tokens 2q,
// 2q + 1, 2q + 8, 2q + 9.
using Elements = float[2][4];

__device__ __forceinline__ int token_of(int e) { return 2 * (int(threadIdx.x) & 3) + (e & 1) + 8 * (e >> 1); }

// Out of the fragments of 16-bit elements, and into them.
template <typename T>
__device__ __forceinline__ void widen(Elements &to, const uint32_t (&from)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 x = unpack<T>(from[i]);
    to[i % 2][i / 2 * 2] = x.x, to[i % 2][i / 2 * 2 + 1] = x.y;
  }
}
template <typename T>
__device__ __forceinline__ void round(const Elements &x, uint32_t (&to)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) to[i] = pack<T>(x[i % 2][i / 2 * 2], x[i % 2][i / 2 * 2 + 1]);
}
// The low or the high 16 bits of each element, as fragments.
__device__ __forceinline__ void take_halves(const Elements &x, bool low, uint32_t (&to)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i)
    to[i] = __byte_perm(__float_as_uint(x[i % 2][i / 2 * 2]), __float_as_uint(x[i % 2][i / 2 * 2 + 1]),
                        low ? 0x5410 : 0x7632);
}

// Sums over a chunk's tokens, of a row's four lanes: inclusive from the first token on, or from the last one back,
// or those of earlier or later tokens alone. Returns the total.
enum class Sum { kForward, kBackward, kBefore, kAfter };
template <Sum kSum>
__device__ __forceinline__ float running_sums(float (&x)[4]) {
  constexpr bool kBack = kSum == Sum::kBackward || kSum == Sum::kAfter;
  const int q = threadIdx.x & 3;
  float before[2], total[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float pair = x[2 * half] + x[2 * half + 1];
    float sum = pair;
#pragma unroll
    for (int step = 1; step < 4; step *= 2) {
      const float other = kBack ? __shfl_down_sync(~0u, sum, step, 4) : __shfl_up_sync(~0u, sum, step, 4);
      if (kBack ? q + step < 4 : q >= step) sum += other;
    }
    total[half] = __shfl_sync(~0u, sum, kBack ? 0 : 3, 4);
    before[half] = sum - pair;
  }
  before[kBack ? 0 : 1] += total[kBack ? 1 : 0];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float &first = x[2 * half], &second = x[2 * half + 1];
    if (kSum == Sum::kForward) {
      first += before[half], second += first;
    } else if (kSum == Sum::kBackward) {
      second += before[half], first += second;
    } else if (kSum == Sum::kBefore) {
      second = before[half] + first, first = before[half];
    } else {
      first = before[half] + second, second = before[half];
    }
  }
  return total[0] + total[1];
}

// The sum up to the run's last token in this chunk or half chunk: the total but for rounding, of which a token's
// own decay to the end has none this way. So <S, dS>, from which d_g begins, is the last token's k y to float32
// where decays leave nothing of other tokens.
__device__ __forceinline__ float sum_to_last(const float (&sums)[4], int last) {
  const float of_pair = last % 2 ? (last < 8 ? sums[1] : sums[3]) : last < 8 ? sums[0] : sums[2];
  return __shfl_sync(~0u, of_pair, last / 2 % 4, 4);
}

// Sums of terms from the last token back, on top of `boundary`, token by token, by log2 decays g. Nothing passes a
// decay of 0, and what the sum then holds is rounding: it stops. in_row(): which of a row's four lanes this is.
template <typename InRow>
__device__ __forceinline__ void sum_and_stop(Elements &terms, float (&boundary)[2], const Elements &g,
                                             InRow in_row) {
#pragma unroll
  for (int half = 1; half >= 0; --half)
#pragma unroll 1
    for (int source = 3; source >= 0; --source)
#pragma unroll
      for (int odd = 1; odd >= 0; --odd)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const int e = 2 * half + odd;
          const float term = __shfl_sync(~0u, terms[h][e], source, 4);
          const bool stops = __shfl_sync(~0u, int(g[h][e] <= kNothing), source, 4);
          boundary[h] = stops ? 0.0f : boundary[h] + term;
          if (in_row() == source) terms[h][e] = boundary[h];
        }
}

}  // namespace lasp::gpu::mma::channel
