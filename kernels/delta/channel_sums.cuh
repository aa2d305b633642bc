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
    load(p, run, token, count, head, channel);
    add_up(p.decay_dtype, totals);
  }
  // The decays, to `g`; of 16 bits both as they are to its first half, so that nothing waits for them here.
  __device__ __forceinline__ void load(const DeltaInputs &p, const Run &run, int64_t token, int count, int32_t head,
                                       int channel) {
    const int64_t base = offset_of(p.g_strides, run.row, token + first, head) + channel + 2 * pair,
                  stride = p.g_strides.token;
    const int there = channel + 2 * pair < p.k.dim ? count - first : 0;
    const auto load_pairs = [&](const auto *data, auto pair_at) {
#pragma unroll
      for (int t = 0; t < 16; ++t) g[t] = t < there ? pair_at(data + base + t * stride) : float2{0, 0};
    };
    const bool even = base % 2 == 0 && stride % 2 == 0;
    if (p.decay_dtype == DType::kFloat32) {
      const auto *const data = static_cast<const float *>(p.g);
      if (even && reinterpret_cast<uintptr_t>(data) % 8 == 0)
        return load_pairs(data, [](const float *at) { return *reinterpret_cast<const float2 *>(at); });
      return load_pairs(data, [](const float *at) { return float2{at[0], at[1]}; });
    }
    const auto *const data = static_cast<const uint16_t *>(p.g);
    if (even && reinterpret_cast<uintptr_t>(data) % 4 == 0)
      return load_pairs(data, [](const uint16_t *at) { return float2{*reinterpret_cast<const float *>(at), 0}; });
    load_pairs(data, [](const uint16_t *at) { return float2{__uint_as_float(at[0] | uint32_t{at[1]} << 16), 0}; });
  }
  // All threads; one barrier.
  __device__ __forceinline__ void add_up(DType type, float *totals) {
    float2 sum = {0, 0};
    // Each type in a place of its own: with both in one, channel_narrow.cu or channel_finish.cu spills registers.
    if (type == DType::kBFloat16)
#pragma unroll
      for (float2 &x : g) x = unpack<__nv_bfloat16>(__float_as_uint(x.x));
#pragma unroll
    for (float2 &to : g) {
      const float2 x = type == DType::kFloat16 ? unpack<__half>(__float_as_uint(to.x)) : to;
      sum.x += clamped_log2(x.x), sum.y += clamped_log2(x.y), to = sum;
    }
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
