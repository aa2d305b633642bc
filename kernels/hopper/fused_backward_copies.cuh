// Rounded copies of the state and its gradient, in shared memory: how a group offers its half of one, and knows
// that the other half is there. And those that wait for the way back, for the gradient of the decay.
//
// On the way forward a step reads the state before its chunk, and puts the one after it in the other buffer. On the
// way back it reads the gradient after its chunk, and puts the one before it. What the other buffer held was read
// in the step before: it is free when the tiles of that step are (wait_copy_free).
#pragma once

#include "fused_backward_decay_terms.cuh"

namespace lasp::gpu::hopper::fused {

template <typename T, bool kGradient, int kMembers>
class StateCopies : protected DecayTerms<T, kMembers> {
  using Terms = DecayTerms<T, kMembers>;
  static constexpr bool kKeptInRows = kMembers == 1;  // see DecayTerms::kept

 protected:
  using Base = Consumer<kMembers>;
  using Base::block_, Base::at_;
  static constexpr int kState = columns_of(kMembers) / 2;  // of a state, a thread's part
  using Terms::DecayTerms;

  // Shared address that this lane names for four 8x8 matrices of this warp's 16 rows of a [128, 128] state in two
  // panels, columns 8j and on (j even: see tile_offset).
  __device__ __forceinline__ uint32_t place(uint32_t buffer, int j) const {
    return (buffer + j / 8 * Layout::kStatePanel + (64 * at_.group + 16 * at_.warp) * 128 + at_.rows) ^ j % 8 << 4;
  }
  static __device__ __forceinline__ void round(const float (&state)[kState], int j, uint32_t (&m)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) m[i] = pack<T>(state[4 * j + 2 * i], state[4 * j + 2 * i + 1]);
  }
  // Puts a rounded copy of `state` into a buffer.
  __device__ __forceinline__ void put_copy(const float (&state)[kState], uint32_t buffer) const {
#pragma unroll
    for (int j = 0; j < kState / 4; j += 2) {
      uint32_t m[4];
      round(state, j, m);
      store_matrices(place(buffer, j), m[0], m[1], m[2], m[3]);
    }
  }
  // Keeps the state before a chunk for the way back.
  __device__ __forceinline__ void keep_rounded(bool keeps, int32_t chunk, const float (&state)[kState]) const {
    uint4 *to = Terms::kept(chunk);
#pragma unroll
    for (int j = 0; j < kState / 4; j += 2) {
      uint32_t m[4];
      round(state, j, m);
      store_global_16_if(keeps, to, {m[0], m[1], m[2], m[3]}), to += Terms::kept_step();
    }
  }
  // This thread's part of a copy.
  __device__ __forceinline__ void get_copy(uint32_t buffer, uint32_t (&pairs)[kState / 2]) const {
#pragma unroll
    for (int j = 0; j < kState / 4; j += 2) {
      uint32_t m[4];
      load_matrices(m, place(buffer, j));
#pragma unroll
      for (int i = 0; i < 4; ++i) pairs[2 * j + i] = m[i];
    }
  }
  // This group has put its part of a copy. Results that wait in their boxes may leave, too.
  __device__ __forceinline__ void publish(bool copied) {
    fence_async_proxy();
    if constexpr (kGradient && kKeptInRows) fence_async_proxy_global();  // they leave for where states were kept
    if (copied) {
      ++published_;
      warp_arrive(block_.state_full(at_.group));
    } else {
      __syncwarp();
    }
  }
  // Until nobody reads the copy of the step before, whose buffer the next one takes.
  __device__ __forceinline__ void wait_copy_free() const { block_.wait_empty(n_ + 1); }
  // Until both groups have published what this one did last.
  __device__ __forceinline__ void wait_published() {
    wait_this_round(block_.state_full(at_.group), RingIndex<1>::of(published_ - 1));
  }

  uint32_t n_ = 0;  // steps

 private:
  uint32_t published_ = 0;  // copies
};

}  // namespace lasp::gpu::hopper::fused
