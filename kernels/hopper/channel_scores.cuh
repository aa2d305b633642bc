// Scores of a chunk by a scaling warpgroup: P[i, j] = sum over channels of a_i b_j of each head, zero where j is
// behind i in the walk, rounded to 16 bits. By tensor cores from what is scaled; or, where the decay of a channel
// is so strong that no pivot serves, from a and b as they are, each product decaying from token to token.
#pragma once

#include "../mma/ptx.cuh"
#include "channel_layout.cuh"

namespace lasp::gpu::hopper::channel {

// Each warp has 16 rows and 16 columns. `halves`: none between half chunks.
template <typename T, int kHeads>
__device__ __forceinline__ void compute_scores(uint32_t stage, uint32_t scores, bool reversed, bool halves) {
  using L = Layout<kHeads>;
  const int thread = mma::thread_again(), lane = thread % 32, warp = thread % 128 / 32, row0 = warp / 2 * 16,
            column0 = warp % 2 * 16;
  const bool any = row0 == column0 || (!halves && (row0 < column0) == reversed);
  const uint32_t row = row0 + lane % 16, column = column0 + lane % 8 + lane / 16 * 8;
  const uint32_t a = stage + L::kA + row * 128, b = stage + L::kB + column * 128;
  const uint32_t of_a = (lane / 16 ^ (row & 7)) << 4, of_b = ((lane / 8 & 1) ^ (column & 7)) << 4;
  const int i = row0 + lane / 4, j = column0 + lane % 4 * 2;
#pragma unroll
  for (int head = 0; head < kHeads; ++head) {
    float sum[2][4] = {};
    if (any) {
#pragma unroll
      for (int k = head * L::kWidth / 16; k < (head + 1) * L::kWidth / 16; ++k) {
        uint32_t left[4], right[4];
        load_matrices(left, a + k / 4 * kBoxPanel + (of_a ^ (k % 4 * 32)));
        load_matrices(right, b + k / 4 * kBoxPanel + (of_b ^ (k % 4 * 32)));
        mma::multiply<T>(sum[0], left, right[0], right[1]);
        mma::multiply<T>(sum[1], left, right[2], right[3]);
      }
    }
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int at = i + 8 * half, first = j + 8 * n;
        const auto seen = [&](int token) { return reversed ? token >= at : token <= at; };
        const uint32_t pair =
            pack<T>(seen(first) ? sum[n][2 * half] : 0.0f, seen(first + 1) ? sum[n][2 * half + 1] : 0.0f);
        store_shared(scores + head * L::kHeadScores + tile_offset<32>(at, first / 8) + lane % 4 * 4, pair);
      }
  }
}

// Log2 decays of two channels of a head at a token, from what the copy engine brought.
template <int kWidth>
__device__ __forceinline__ float2 read_decay(uint32_t g, DType type, int row, int pair) {
  if (type == DType::kFloat32) {
    const float2 x = load_shared_pair(g + row * 4 * kWidth + 8 * pair);
    return {x.x * kLog2E, x.y * kLog2E};
  }
  const uint32_t bits = load_shared(g + row * 2 * kWidth + 4 * pair);
  const float2 x = type == DType::kBFloat16 ? unpack<__nv_bfloat16>(bits) : unpack<__half>(bits);
  return {x.x * kLog2E, x.y * kLog2E};
}

// Of half chunks, of a head whose tiles and decays are at these addresses.
template <typename T, int kWidth>
__device__ __forceinline__ void compute_scores_by_pairs(uint32_t a, uint32_t b, uint32_t decays, uint32_t scores,
                                                        bool reversed, DType type) {
  constexpr int kPairs = kWidth / 64;  // of channels, of a lane
  const int lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32;
  const uint32_t of_earlier = reversed ? a : b, of_later = reversed ? b : a;
  const auto element = [&](uint32_t tile, int row, int n) {
    return unpack<T>(load_shared(tile + piece_offset(row, lane / 4 + 8 * n) + lane % 4 * 4));
  };
#pragma unroll 1
  for (int earlier = warp; earlier < kTokens; earlier += 4) {
    float2 scaled[kPairs];
#pragma unroll
    for (int n = 0; n < kPairs; ++n) scaled[n] = element(of_earlier, earlier, n);
#pragma unroll 1
    for (int later = 0; later < kTokens; ++later) {
      float sum = 0;
      if (later >= earlier && later / kHalf == earlier / kHalf) {
#pragma unroll
        for (int n = 0; n < kPairs; ++n) {
          if (later > earlier) {
            const float2 g = read_decay<kWidth>(decays, type, later, lane + 32 * n);
            scaled[n].x *= exp2_fast(g.x), scaled[n].y *= exp2_fast(g.y);
          }
          const float2 x = element(of_later, later, n);
          sum = fmaf(x.x, scaled[n].x, fmaf(x.y, scaled[n].y, sum));
        }
        for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
      }
      if (lane == 0) {
        const int i = reversed ? earlier : later, j = reversed ? later : earlier;
        asm volatile("st.shared.u16 [%0], %1;" ::"r"(scores + tile_offset<32>(i, j / 8) + j % 8 * 2),
                     "h"(uint16_t(pack<T>(sum, 0)))
                     : "memory");
      }
    }
  }
}

}  // namespace lasp::gpu::hopper::channel
