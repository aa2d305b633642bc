// Running sums of decays per channel in a chunk, two channels of 16 tokens a thread.
#pragma once

#include "channel_layout.cuh"

namespace lasp::gpu::delta_hopper::channel {

// In log2: where no channel decays by more in a chunk, 2^-G and all products stay far from what T has as its
// largest, and low parts from its smallest.
template <typename T>
constexpr float kWidest = kIsBFloat16<T> ? 96 : 8;

// By 4 kPairs threads, of 2 kPairs channels.
template <int kPairs>
struct Sums {
  float2 g[kChunk / 4], last;
  int pair = threadIdx.x % kPairs, first = threadIdx.x / kPairs * 16;

  // All threads; one barrier. `totals`: [4][2 kPairs].
  __device__ __forceinline__ void find(const DeltaInputs &p, const Run &run, int64_t token, int count, int32_t head,
                                       int channel, float *totals) {
    const int64_t base = offset_of(p.g_strides, run.row, token + first, head) + channel + 2 * pair,
                  stride = p.g_strides.token;
    const int there = channel + 2 * pair < p.k.dim ? count - first : 0;
    with_elements(p.g, p.decay_dtype, [&](const auto *data) {
#pragma unroll
      for (int t = 0; t < 16; ++t)
        g[t] = t < there ? float2{as_float(data[base + t * stride]), as_float(data[base + t * stride + 1])}
                         : float2{0, 0};
    });
    float2 sum = {0, 0};
#pragma unroll
    for (int t = 0; t < 16; ++t) sum.x += clamped_log2(g[t].x), sum.y += clamped_log2(g[t].y), g[t] = sum;
    float2 *const all = reinterpret_cast<float2 *>(totals) + pair;
    all[first / 16 * kPairs] = sum;
    __syncthreads();
    float2 before = {0, 0};
    last = {0, 0};
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      if (n == first / 16) before = last;
      const float2 x = all[n * kPairs];
      last.x += x.x, last.y += x.y;
    }
#pragma unroll
    for (int t = 0; t < 16; ++t) g[t].x += before.x, g[t].y += before.y;
  }
  // To rows of kRow floats.
  template <int kRow>
  __device__ __forceinline__ void store(float *rows) const {
#pragma unroll
    for (int t = 0; t < 16; ++t) *reinterpret_cast<float2 *>(rows + (first + t) * kRow + 2 * pair) = g[t];
  }
  template <typename T>
  __device__ __forceinline__ bool narrow() const {
    return last.x >= -kWidest<T> && last.y >= -kWidest<T>;
  }
};

}  // namespace lasp::gpu::delta_hopper::channel
