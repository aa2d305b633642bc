// Two warps that share 16 columns of V under the delta rule, each with half of K's rows: of what is a sum over
// these rows each has a part, and they trade parts by way of shared memory. They walk in step, and find alike what
// follows.
#pragma once

#include "delta_chunks.cuh"

namespace lasp::gpu::mma_delta {

// kSplit 1: there is no other, and nothing is done. kOfWarp: from a warp's place to the next one's; bytes.
template <int kSplit, int kOfWarp = 4 * 512>
struct Partner {
  static constexpr int kTiles = 4;  // of 16 columns and 8 tokens at once
  static constexpr int kBytes = kSplit > 1 ? 4 * kOfWarp : 0, kPairs = 4 / kSplit;
  static_assert(kOfWarp >= kTiles * 512);
  uint32_t memory;

  // Whose the outputs of 16 tokens are: as many products for each.
  static __device__ __forceinline__ bool takes(int block) {
    return kSplit == 1 || (block == 0 || block == 3) == (this_half<kSplit>() == 0);
  }
  static __device__ __forceinline__ void sync() {
    const int pair = this_warp() % kPairs, role = int(threadIdx.x) / kRole;
    asm volatile("bar.sync %0, 64;" ::"r"(1 + kPairs * role + pair) : "memory");
  }
  __device__ __forceinline__ uint32_t place_of(int half) const {
    return memory + (this_warp() % kPairs * kSplit + half) * kOfWarp + 16 * this_lane();
  }
  __device__ __forceinline__ void leave(int i, const float (&x)[4]) const {
    store_shared_16(place_of(this_half<kSplit>()) + 512 * i, uint4{__float_as_uint(x[0]), __float_as_uint(x[1]),
                                                                   __float_as_uint(x[2]), __float_as_uint(x[3])});
  }
  __device__ __forceinline__ void add(int i, float (&x)[4]) const {
    const uint4 other = load_shared_16(place_of(1 - this_half<kSplit>()) + 512 * i);
    x[0] += __uint_as_float(other.x), x[1] += __uint_as_float(other.y);
    x[2] += __uint_as_float(other.z), x[3] += __uint_as_float(other.w);
  }
  // Of all tokens, for both. then(i), of 8 tokens: before the other warp goes on.
  template <typename Then>
  __device__ __forceinline__ void add_all(Tokens &y, Then then) const {
    if constexpr (kSplit > 1)
#pragma unroll
      for (int first = 0; first < kTokens8; first += kTiles) {
#pragma unroll
        for (int i = 0; i < kTiles; ++i) leave(i, y[first + i]);
        sync();
#pragma unroll
        for (int i = 0; i < kTiles; ++i) add(i, y[first + i]), then(first + i);
        sync();
      }
  }
  // Of the tokens that each takes(). At the end the other warp still reads.
  __device__ __forceinline__ void add_own(Tokens &o) const {
    if constexpr (kSplit > 1) {
      if (this_half<kSplit>() == 0) {
        leave(0, o[2]), leave(1, o[3]), leave(2, o[4]), leave(3, o[5]);
      } else {
        leave(0, o[0]), leave(1, o[1]), leave(2, o[6]), leave(3, o[7]);
      }
      sync();
      if (this_half<kSplit>() == 0) {
        add(0, o[0]), add(1, o[1]), add(2, o[6]), add(3, o[7]);
      } else {
        add(0, o[2]), add(1, o[3]), add(2, o[4]), add(3, o[5]);
      }
    }
  }
};

}  // namespace lasp::gpu::mma_delta
