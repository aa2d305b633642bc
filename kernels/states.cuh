// What the kernels on states share (states.cu, compositions.cu).
#pragma once

#include "elements.cuh"
#include "known_factors.h"

namespace lasp::gpu {

// Element `at` of a state [H, K, V] and the factor [H(, K)] that multiplies it.
struct StateOffsets {
  int64_t state, factor;
  bool first_of_factor;
  __device__ StateOffsets(const StateShape &s, int64_t at) : state(at) {
    const int64_t span = s.channel ? s.dim_v : s.dim_k * s.dim_v;
    factor = quotient(at, span);
    first_of_factor = factor * span == at;
  }
};
__host__ __device__ inline int64_t state_floats(const StateShape &s) { return s.heads * s.dim_k * s.dim_v; }
__host__ __device__ inline int64_t factor_floats(const StateShape &s) {
  return s.heads * (s.channel ? s.dim_k : 1);
}

// One element of a state, or four neighbours of one row: decayed, and joined by what comes later.
__device__ inline float follow(float x, float code, float y) {
  return forgets_all(code) ? y : decayed(x, code) + y;
}
__device__ inline float4 follow(float4 x, float code, float4 y) {
  return {follow(x.x, code, y.x), follow(x.y, code, y.y), follow(x.z, code, y.z), follow(x.w, code, y.w)};
}

// The code of a factor that nobody has written.
__device__ inline float known_code(const KnownFactor &known, const float *head_decay, int64_t head) {
  if (known.reset) return 0;
  return decay_code(head_decay != nullptr ? log_decay_power(head_decay[head], known.tokens) : 0.0);
}

inline bool aligned_for_four(const void *x) { return reinterpret_cast<uintptr_t>(x) % sizeof(float4) == 0; }
// Loads what compositions.cu has.
int load_compositions();

}  // namespace lasp::gpu
