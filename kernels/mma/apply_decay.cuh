// Decays of a chunk by channel, by the producer warps. With E_i a channel's summed log decay from the pivot
// (between the chunk's halves) to row i, negative before it,
//
//   exp(G_i - G_j) = exp(E_i) exp(-E_j)
//
// splits into a factor for each side, of which none is far from 1 where decay is not strong. The state is kept
// relative to the pivot of its chunk, so that one multiplication takes it from chunk to chunk. Where a channel's
// sum over half a chunk passes kSteepest the chunk goes the direct way instead: factors relative to its two ends,
// each at most 1, and products of neighbours as a sum in float32. No difference of running sums is formed either
// way.
#pragma once

#include "producer.cuh"

namespace lasp::gpu::mma {

// Powers of two that a factor may have: float16 has few to spare.
template <typename T>
constexpr float kSteepest = kIsBFloat16<T> ? 24.0f : 4.0f;

// The log2 decays of two channels in a half of the chunk, from the pivot outward. In blocks of more channels than
// threads a thread has several.
template <typename T, int kDim, Kind kKind>
struct Share {
  using L = Layout<kDim, kKind>;
  static constexpr int kCount = (L::kChannels + kProducerThreads - 1) / kProducerThreads;
  int pair;
  bool late, exists;  // late: the half after the pivot
  float2 decay[kHalf];

  __device__ __forceinline__ int row(int r) const { return late ? kHalf + r : kHalf - 1 - r; }
  __device__ __forceinline__ char *at(char *tile, int stride, int r) const {
    return tile + row(r) * stride + 4 * pair;
  }

  __device__ __forceinline__ void read(const Producer<T, kDim, kKind> &producer, int index, char *stage) {
    const int i = producer.thread + index * kProducerThreads;
    pair = i % (L::kChannels / 2), late = i >= L::kChannels / 2, exists = i < L::kChannels;
    if (!exists) return;
    char *const g = stage + L::kG;
    if (producer.wide_decay) {
#pragma unroll
      for (int r = 0; r < kHalf; ++r)
        decay[r] = *reinterpret_cast<const float2 *>(at(g + 4 * pair, 4 * L::kChannels, r));
    } else {
#pragma unroll
      for (int r = 0; r < kHalf; ++r) {
        const uint32_t bits = *reinterpret_cast<const uint32_t *>(at(g, 2 * L::kChannels, r));
        decay[r] = producer.p.decay_dtype == DType::kBFloat16 ? unpack<__nv_bfloat16>(bits) : unpack<__half>(bits);
      }
    }
#pragma unroll
    for (int r = 0; r < kHalf; ++r) decay[r] = {log2_decay(decay[r].x), log2_decay(decay[r].y)};
  }

  // Sums, and whether the factors from the pivot would be too steep.
  __device__ __forceinline__ bool sum(float2 &total) const {
    float2 size = {0, 0};
    total = {0, 0};
#pragma unroll
    for (int r = 0; r < kHalf; ++r) {
      total.x += decay[r].x, total.y += decay[r].y;
      size.x += fabsf(decay[r].x), size.y += fabsf(decay[r].y);
    }
    return !(size.x <= kSteepest<T> && size.y <= kSteepest<T>);
  }
  __device__ __forceinline__ void read_tile(uint32_t (&to)[kHalf], char *tile, int stride) const {
#pragma unroll
    for (int r = 0; r < kHalf; ++r) to[r] = *reinterpret_cast<const uint32_t *>(at(tile, stride, r));
  }

  // f(r, factor of the side that reads (a or y), factor of the side that writes (b or c)).
  template <typename Do>
  __device__ __forceinline__ void from_pivot(Do f) const {
    float2 sum = {0, 0};
    const float sign = late ? 1.0f : -1.0f;
#pragma unroll
    for (int r = 0; r < kHalf; ++r) {
      const float2 next = {sum.x + decay[r].x, sum.y + decay[r].y};
      const float2 e = {sign * (late ? next.x : sum.x), sign * (late ? next.y : sum.y)};
      f(r, float2{exp2_fast(e.x), exp2_fast(e.y)}, float2{exp2_fast(-e.x), exp2_fast(-e.y)});
      sum = next;
    }
  }
  // The same relative to the chunk's beginning and end; `other`: the sum of the other half.
  template <typename Do>
  __device__ __forceinline__ void from_ends(float2 other, Do f) const {
    float2 inner = {0, 0};  // from the pivot
#pragma unroll
    for (int r = 0; r < kHalf; ++r) {
      float2 outer = {0, 0};  // to the half's end
#pragma unroll
      for (int i = r + 1; i < kHalf; ++i) outer.x += decay[i].x, outer.y += decay[i].y;
      const float2 next = {inner.x + decay[r].x, inner.y + decay[r].y};
      const float2 before =
          late ? float2{other.x + next.x, other.y + next.y} : float2{outer.x + decay[r].x, outer.y + decay[r].y};
      const float2 after = late ? outer : float2{other.x + inner.x, other.y + inner.y};
      f(r, float2{exp2_fast(before.x), exp2_fast(before.y)}, float2{exp2_fast(after.x), exp2_fast(after.y)});
      inner = next;
    }
  }
};

template <typename T, int kDim, Kind kKind>
struct StateDecay {
  using L = Layout<kDim, kKind>;
  const Producer<T, kDim, kKind> &producer;
  __device__ float *floats(int at, int copy = 0) const {
    return reinterpret_cast<float *>(producer.memory + at + copy * L::kDecayBytes);
  }
  // The state's decay up to this chunk's pivot, or where the chunk goes the direct way to its beginning, and then
  // from there to its end. By kThreads threads, of which this is `thread`.
  template <int kThreads>
  __device__ __forceinline__ void put(int chunk, bool direct, int thread) const {
    if (thread == 0) reinterpret_cast<int *>(producer.memory + L::kDirect)[copy_of(chunk)] = direct;
#pragma unroll
    for (int n = 0; n < (L::kChannels + kThreads - 1) / kThreads; ++n) {
      const int i = thread + n * kThreads;
      if (L::kChannels % kThreads && i >= L::kChannels) break;
      const float early = floats(L::kTotals)[i], late = floats(L::kTotals, 1)[i], pending = floats(L::kPending)[i];
      float compensation = floats(L::kCompensation)[i];
      floats(L::kBefore, copy_of(chunk))[i] = state_decay(pending + (direct ? 0.0f : early), compensation);
      if (direct) floats(L::kAfter, copy_of(chunk))[i] = state_decay(early + late, compensation);
      floats(L::kPending)[i] = direct ? 0.0f : late;
      floats(L::kCompensation)[i] = compensation;
    }
  }
  // After the last chunk.
  __device__ __forceinline__ void put_pending(int chunk) const {
    for (int i = producer.thread; i < L::kChannels; i += kProducerThreads)
      floats(L::kBefore, copy_of(chunk))[i] = state_decay(floats(L::kPending)[i], floats(L::kCompensation)[i]);
  }
};

}  // namespace lasp::gpu::mma
