// In a split block of the delta rule, what a walking warp and the warp that helps it hand to each other
// (delta_walk.cuh): the state that enters a chunk, rounded to 16 bits; and of a chunk's tokens E forward, Z and P^T
// do backward. There is one place for a state and one for tokens, which two barriers guard:
//
//              forward                              backward
//   full       E(n) is there                        both walking warps have read P^T do(n); Z(n) is there, if kept
//   back       E(n) has been read                   Z(n-1) has been read; P^T do(n) is there
#pragma once

#include "delta_partner.cuh"

namespace lasp::gpu::mma_delta {

template <int kRows, int kSplit>
struct Handed {
  // The state of a warp; the tokens of two warps with the same columns, in float32; bytes.
  static constexpr int kOfState = kRows / kSplit / 16 * 512, kOfTokens = kTokens8 * 512, kPairs = 4 / kSplit;
  static constexpr int kBytes = kSplit == 1 ? 0 : 4 * kOfState + 4 / kSplit * kOfTokens;
  static constexpr int kBarriers = 2 * (4 + kPairs);  // states full, states empty, tokens full, tokens back
  uint32_t memory, barriers;

  static __device__ __forceinline__ void begin_barriers(uint32_t barriers) {
    if constexpr (kSplit > 1)
      for (int i = 0; i < kBarriers; ++i)  // a state is left by one warp; all else is up to two
        begin_barrier(barriers + 8 * i, i < 4 ? 32 : 32 * kSplit);
  }
  // The state is there; its place has been read, by both warps that help with these columns.
  __device__ __forceinline__ uint32_t state_full() const { return barriers + 8 * this_warp(); }
  __device__ __forceinline__ uint32_t state_empty() const { return state_full() + 8 * 4; }
  __device__ __forceinline__ void give_states_back() const {
    for (int half = 0; half < kSplit; ++half) arrive(barriers + 8 * (4 + this_warp() % kPairs + kPairs * half));
  }
  // Forward a walking warp waits for the last chunk's `back` before it leaves E; backward for this chunk's, for P^T
  // do.
  __device__ __forceinline__ uint32_t tokens_full() const { return barriers + 8 * (8 + this_warp() % kPairs); }
  __device__ __forceinline__ uint32_t tokens_back() const { return tokens_full() + 8 * kPairs; }

  // A left operand of 16 rows; 8 tokens.
  __device__ __forceinline__ uint32_t state_at(int step) const {
    return memory + (this_warp() % kPairs * kSplit + this_half<kSplit>()) * kOfState + 512 * step +
           16 * this_lane();
  }
  __device__ __forceinline__ uint32_t tokens_at(int tokens8) const {
    return memory + 4 * kOfState + this_warp() % kPairs * kOfTokens + 512 * tokens8 + 16 * this_lane();
  }
  // A warp's half of the tokens.
  static __device__ __forceinline__ bool has(int tokens8) {
    return tokens8 / (kTokens8 / kSplit) == this_half<kSplit>();
  }
  __device__ __forceinline__ void leave_tokens(const Tokens &y) const {
#pragma unroll
    for (int i = 0; i < kTokens8; ++i)
      if (has(i))
        store_shared_16(tokens_at(i), uint4{__float_as_uint(y[i][0]), __float_as_uint(y[i][1]),
                                            __float_as_uint(y[i][2]), __float_as_uint(y[i][3])});
  }
  __device__ __forceinline__ void take(int tokens8, float (&y)[4]) const {
    const uint4 x = load_shared_16(tokens_at(tokens8));
    y[0] = __uint_as_float(x.x), y[1] = __uint_as_float(x.y);
    y[2] = __uint_as_float(x.z), y[3] = __uint_as_float(x.w);
  }
};

}  // namespace lasp::gpu::mma_delta
