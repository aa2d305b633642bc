// What the walks of channel_walk.cuh are made of: limits of their factors, decays from shared memory, and where
// ldmatrix reads.
#pragma once

#include "../add_global.cuh"
#include "channel_elements.cuh"
#include "channel_layout.cuh"

namespace lasp::gpu::mma::channel {

// Above, factors 2^(+-limit) are no longer safe: float16 ends at 2^16, and the tensor cores align what they add by
// the exponents of the factors, so that 2^limit times a masked 0 (2^-126 to them) cuts what is below 2^-24 of it.
template <typename T>
inline constexpr float kLimit = kIsBFloat16<T> ? 40 : 5;

__device__ __forceinline__ float read_shared(uint32_t at) {
  float x;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(at) : "memory");
  return x;
}

// The log2 decays of a chunk, clamped, from a tile of tokens `stride` apart, this lane's first token at `at`:
// float32, or of the tensors' type.
template <typename T>
__device__ __forceinline__ void read_log2_decays(Elements &to, uint32_t at, int stride, int channel,
                                                 bool is_float) {
  const auto each = [&](auto read) {
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
      for (int e = 0; e < 4; ++e) to[h][e] = read(at + (e % 2 + e / 2 * 8) * stride, channel + 8 * h);
  };
  if (is_float) {
    each([](uint32_t row, int its_channel) { return read_shared(row + 4 * its_channel); });
  } else {
    each([](uint32_t row, int its_channel) {
      uint16_t bits;
      asm volatile("ld.shared.u16 %0, [%1];" : "=h"(bits) : "r"(row + 2 * its_channel) : "memory");
      return unpack<T>(bits).x;
    });
  }
#pragma unroll
  for (int h = 0; h < 2; ++h)
#pragma unroll
    for (int e = 0; e < 4; ++e) to[h][e] = clamped_log2(to[h][e]);
}

// Where a lane's row of 16 tokens by 16 columns of a tile is for ldmatrix: as a right operand with tokens as
// columns (transposed: a left one with tokens as columns); as a right operand with tokens as rows (transposed).
__device__ __forceinline__ uint32_t fragment_offset(int stride) {
  const int lane = threadIdx.x % 32;
  return (lane % 8 + lane / 16 * 8) * stride + lane / 8 % 2 * 16;
}
__device__ __forceinline__ uint32_t update_offset(int stride) {
  const int lane = threadIdx.x % 32;
  return lane % 16 * stride + lane / 16 * 16;
}

}  // namespace lasp::gpu::mma::channel
