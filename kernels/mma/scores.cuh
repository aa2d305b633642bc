// Scores of a chunk, by the producer warps: P[i, j] = sum over channels of a_i b_j, what j > i has is zero, rounded
// to 16 bits where the state warps find it. By tensor cores, two of the four warps, a half of the j each; or, where
// the decay by channel is so strong that no pivot serves, as a sum of products in float32.
#pragma once

#include "producer.cuh"

namespace lasp::gpu::mma {

template <typename T, int kDim, Kind kKind>
struct Scores {
  using L = Layout<kDim, kKind>;
  const Producer<T, kDim, kKind> &producer;
  const int lane = threadIdx.x % 32, warp = producer.thread / 32;

  __device__ char *scores(int chunk) const {
    return producer.memory + L::kScores + copy_of(chunk) * kChunk * L::kScoreRow;
  }

  // sum[0..1]: row lane / 4, columns j, j + 1 (j = 8 warp + 2 (lane % 4)); sum[2..3]: eight rows further.
  __device__ __forceinline__ void products(float (&sum)[4], int chunk) const {
    const char *const stage = producer.stage();
    const uint32_t a = shared_address(stage + L::kA) + (lane % 16) * L::kWide + lane / 16 * 16;
    const uint32_t b = shared_address(stage + L::kB) + (8 * warp + lane % 8) * L::kWide + lane / 8 * 16;
    float other[4] = {};
#pragma unroll
    for (int k = 0; k < kDim; k += 32) {
      uint32_t first[4], second[4], right[4];
      load_matrices(first, a + 2 * k);
      load_matrices(second, a + 2 * k + 32);
      load_matrices(right, b + 2 * k);
      multiply<T>(sum, first, right[0], right[1]);
      multiply<T>(other, second, right[2], right[3]);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) sum[i] += other[i];
  }

  // Warps 0 and 1. factor(i, j): what a score is multiplied by.
  template <typename Factor>
  __device__ __forceinline__ void compute(int chunk, Factor factor) const {
    float sum[4] = {};
    products(sum, chunk);
    const int row = lane / 4, column = 8 * warp + 2 * (lane % 4);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int i = row + 8 * half;
      const float x = column <= i ? sum[2 * half] * factor(i, column) : 0.0f;
      const float y = column + 1 <= i ? sum[2 * half + 1] * factor(i, column + 1) : 0.0f;
      *reinterpret_cast<uint32_t *>(scores(chunk) + i * L::kScoreRow + 2 * column) = pack<T>(x, y);
      if constexpr (kKind == Kind::kRows)
        *reinterpret_cast<float2 *>(producer.memory + L::kExact + 4 * (i * kChunk + column)) = {x, y};
    }
  }

  // All producer warps, from a and b as they are: each product decays from token to token.
  __device__ void compute_direct(int chunk) const {
    const char *const stage = producer.stage();
    constexpr int kColumns = kDim / 32;
#pragma unroll 1
    for (int j = warp; j < kChunk; j += kProducerThreads / 32) {
      float scaled[kColumns];
#pragma unroll
      for (int n = 0; n < kColumns; ++n) scaled[n] = element(stage + L::kB, j, lane + 32 * n);
#pragma unroll 1
      for (int i = 0; i < kChunk; ++i) {
        float sum = 0;
        if (i >= j) {
#pragma unroll
          for (int n = 0; n < kColumns; ++n) {
            const int column = lane + 32 * n;
            if (i > j) scaled[n] *= exp2_fast(decay(stage, i, column));
            sum = fmaf(element(stage + L::kA, i, column), scaled[n], sum);
          }
        }
        for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
        if (lane == 0) {
          const uint16_t rounded = static_cast<uint16_t>(pack<T>(sum, 0));
          *reinterpret_cast<uint16_t *>(scores(chunk) + i * L::kScoreRow + 2 * j) = rounded;
        }
      }
    }
  }

  __device__ float element(const char *tile, int row, int column) const {
    const uint32_t bits = *reinterpret_cast<const uint16_t *>(tile + row * L::kWide + 2 * column);
    return unpack<T>(bits).x;
  }
  // log2 decay of a channel.
  __device__ float decay(const char *stage, int row, int column) const {
    return log2_decay(load_element(stage + L::kG, producer.p.decay_dtype, row * L::kChannels + column));
  }
};

}  // namespace lasp::gpu::mma
