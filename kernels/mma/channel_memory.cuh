// What the backward walks with per-channel decay read and write: copies of a chunk into its stage, and results and
// x on their way to memory.
#pragma once

#include "channel_parts.cuh"

namespace lasp::gpu::mma::channel {

// kPlain: x is float32, and nothing is added to what is there.
template <typename T, int kRows, int kColumns, bool kReversed, bool kPlain>
struct WalkerMemory {
  using L = Layout<kRows, kColumns, kReversed>;
  const Walk &p;
  const uint32_t shared;
  const int warp, lane;

  __device__ WalkerMemory(const Walk &walk, const void *memory)
      : p(walk), shared(shared_address(memory)), warp(int(threadIdx.x) / 32), lane(int(threadIdx.x) % 32) {}

  __device__ bool x_is_float() const { return kPlain || p.x_is_float; }
  __device__ bool adds() const { return !kPlain && p.adds; }
  __device__ uint32_t stage(int i) const { return shared + L::kFirstStage + i * L::kStageBytes; }
  // This lane's first channel; the other is 8 on.
  __device__ int channel() const { return warp * 16 + lane / 4; }

  // One group of copies, even if there is nothing left to copy, so that groups can be counted.
  __device__ __forceinline__ void load(const Source *from, int to_stage, int chunk, int32_t length) const {
    if (kReversed ? chunk >= 0 : chunk * kChunk < length) {
      const int count = min(kChunk, length - chunk * kChunk), thread = thread_again();
      const uint32_t token = uint32_t(chunk) * kChunk, to = stage(to_stage);
      constexpr int kThreads = L::kThreads;
      copy_tile<kColumns / 8, L::kWide, kThreads>(to + L::kAt, from[kA], 2 * kColumns, token, count, thread);
      copy_tile<kColumns / 8, L::kWide, kThreads>(to + L::kBt, from[kB], 2 * kColumns, token, count, thread);
      copy_tile<kRows / 8, L::kNarrow, kThreads>(to + L::kCt, from[kC], 2 * kRows, token, count, thread);
      copy_tile<kRows / 4, L::kFull, kThreads>(to + L::kGt, from[kG], (p.decay_is_float ? 4 : 2) * kRows, token,
                                               count, thread);
      if (kReversed && p.x) {
        copy_tile<kRows / 8, L::kNarrow, kThreads>(to + L::kPartnerT, from[kPartner], 2 * kRows, token, count,
                                                   thread);
        if (x_is_float()) {
          const int32_t there = adds() ? 0 : count;  // the first columns take all of x
          copy_tile<kRows / 4, L::kFull, kThreads>(to + L::kXt, from[kX], 4 * kRows, token, there, thread);
        } else {
          copy_tile<kRows / 8, L::kFull, kThreads>(to + L::kXt, from[kX], 2 * kRows, token, count, thread);
          copy_tile<kRows / 8, L::kFull, kThreads>(to + L::kXt + 2 * kRows, from[kY], 2 * kRows, token, count,
                                                   thread);
        }
      }
    }
    copies_commit();
  }

  static __device__ __forceinline__ void write_pair(uint32_t at, float x, float y) {
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(at), "f"(x), "f"(y) : "memory");
  }
  static __device__ __forceinline__ void write_float(uint32_t at, float x) {
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(at), "f"(x) : "memory");
  }
  static __device__ __forceinline__ void write_word(uint32_t at, uint32_t x) {
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(at), "r"(x) : "memory");
  }

  // c or another tile of K columns, channels by tokens.
  __device__ __forceinline__ void load_channels(uint32_t (&to)[4], uint32_t tile) const {
    load_matrices_transposed(to, tile + fragment_offset(L::kNarrow) + 32 * warp);
  }

  __device__ __forceinline__ void store_y(const Elements &y, const Source &to, uint32_t token, int count) const {
    uint32_t rounded[4];
    round<T>(y, rounded);
    store_halves<true>(rounded, to, token, count);
  }
  // A warp's 16 tokens of 16 channels, of 16 bits each: transposed, then 16 bytes a lane. They join what is there
  // where kMayAdd and the walk adds.
  template <bool kMayAdd>
  __device__ __forceinline__ void store_halves(const uint32_t (&pairs)[4], const Source &to, uint32_t token,
                                               int count) const {
    const uint32_t staging = shared + L::kStaging + warp * L::kStagingBytes;
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t x = pairs[i];
      uint32_t turned;  // token 8 (i / 2) + lane / 4, channels 8 (i % 2) + 2 (lane % 4)
      asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(turned) : "r"(x));
      write_word(staging + (lane / 4 + i / 2 * 8) * L::kStagingRow + i % 2 * 16 + lane % 4 * 4, turned);
    }
    __syncwarp();
    const int thread = thread_again(), row = thread % 32 / 2;
    const uint4 v = load_shared_16(staging + row * L::kStagingRow + thread % 2 * 16);
    if (row >= count) return;
    uint4 *const at = reinterpret_cast<uint4 *>(to.base + uint64_t{token + row} * to.token_bytes +
                                                thread / 32 * 32 + thread % 2 * 16);
    if (kMayAdd && adds()) return add_global<T>(at, v);
    *at = v;
  }
  // x, or reversed d_g.
  __device__ __forceinline__ void store_x(const Elements &x, const Source *tensors, uint32_t token,
                                          int count) const {
    const Source &to = tensors[kX];
    if (!x_is_float()) return store_x_halves(x, tensors, token, count);
    char *const first = to.base + uint64_t{token + token_of(0)} * to.token_bytes + 4 * channel();
#pragma unroll
    for (int e = 0; e < 4; ++e)
      if (token_of(e) < count) {
        float *const at = reinterpret_cast<float *>(first + uint64_t{to.token_bytes} * (e % 2 + e / 2 * 8));
        if (adds()) {
          add_global(at, x[0][e]), add_global(at + 8, x[1][e]);
        } else {
          at[0] = x[0][e], at[8] = x[1][e];
        }
      }
  }
  __device__ __forceinline__ void store_x_halves(const Elements &x, const Source *tensors, uint32_t token,
                                                 int count) const {
    uint32_t pairs[4];
    if constexpr (kReversed) {
      round<T>(x, pairs);
      store_halves<false>(pairs, tensors[kX], token, count);
    } else {
#pragma unroll
      for (int low = 0; low < 2; ++low) {
        take_halves(x, low, pairs);
        store_halves<false>(pairs, tensors[low ? kPartner : kX], token, count);
      }
    }
  }
  // What store_x has left, of a chunk in its stage.
  __device__ __forceinline__ void load_x(Elements &x, uint32_t tile) const {
    const uint32_t at = tile + L::kXt;
    if (x_is_float()) {
      const uint32_t first = at + token_of(0) * L::kFull + 4 * channel();
#pragma unroll
      for (int h = 0; h < 2; ++h)
#pragma unroll
        for (int e = 0; e < 4; ++e) x[h][e] = read_shared(first + (e % 2 + e / 2 * 8) * L::kFull + 32 * h);
      return;
    }
    uint32_t half[4];
    load_matrices_transposed(half, at + fragment_offset(L::kFull) + 32 * warp);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      x[i % 2][i / 2 * 2] = __uint_as_float(half[i] << 16);
      x[i % 2][i / 2 * 2 + 1] = __uint_as_float(half[i] & 0xffff0000);
    }
    load_matrices_transposed(half, at + fragment_offset(L::kFull) + 32 * warp + 2 * kRows);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float &even = x[i % 2][i / 2 * 2], &odd = x[i % 2][i / 2 * 2 + 1];
      even = __uint_as_float(__float_as_uint(even) | (half[i] & 0xffff));
      odd = __uint_as_float(__float_as_uint(odd) | half[i] >> 16);
    }
  }
};

}  // namespace lasp::gpu::mma::channel
