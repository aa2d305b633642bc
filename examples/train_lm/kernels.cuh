// What the kernels share: four elements at a time, sums over a warp or a block, and launches that are checked.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "cuda.hpp"
#include "device_cuda.hpp"

namespace train_lm {

struct Four {
  float v[4];
};

__device__ inline Four load(const float *p) {
  const float4 x = *reinterpret_cast<const float4 *>(p);
  return {{x.x, x.y, x.z, x.w}};
}

__device__ inline Four load(const __nv_bfloat16 *p) {
  const uint2 x = *reinterpret_cast<const uint2 *>(p);  // a bfloat16 is the upper half of a float
  return {{__uint_as_float(x.x << 16), __uint_as_float(x.x & 0xffff0000u), __uint_as_float(x.y << 16),
           __uint_as_float(x.y & 0xffff0000u)}};
}

__device__ inline void store(float *p, const Four &x) {
  *reinterpret_cast<float4 *>(p) = make_float4(x.v[0], x.v[1], x.v[2], x.v[3]);
}

__device__ inline void store(__nv_bfloat16 *p, const Four &x) {
  *reinterpret_cast<__nv_bfloat162 *>(p) = __floats2bfloat162_rn(x.v[0], x.v[1]);
  *reinterpret_cast<__nv_bfloat162 *>(p + 2) = __floats2bfloat162_rn(x.v[2], x.v[3]);
}

template <typename T>
__device__ T warp_sum(T x) {
  for (int distance = 16; distance > 0; distance /= 2) x += __shfl_xor_sync(0xffffffffu, x, distance);
  return x;
}

// Two sums in one go.
struct Two {
  float a, b;
  __device__ void operator+=(const Two &other) { a += other.a, b += other.b; }
};
__device__ inline Two warp_sum(Two x) { return {warp_sum(x.a), warp_sum(x.b)}; }

// The sum of all threads' x, in every thread of a block of `kBlock`.
constexpr int kBlock = 256;
template <typename T>
__device__ T block_sum(T x) {
  __shared__ T shared[kBlock / 32];
  x = warp_sum(x);
  __syncthreads();  // the last sum has been read
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
  __syncthreads();
  T sum = shared[0];
  for (int i = 1; i < kBlock / 32; ++i) sum += shared[i];
  return sum;
}

// Calls f with x's first element as what it is; `as` gives another array of the same type.
template <typename F>
void with_type(Real x, const F &f) {
  if (x.size == 2)
    f(reinterpret_cast<__nv_bfloat16 *>(x.data));
  else
    f(reinterpret_cast<float *>(x.data));
}
template <typename T>
T *as(Real x) {
  return reinterpret_cast<T *>(x.data);
}

inline void launched(const char *kernel) { cuda::check(cudaGetLastError(), kernel); }

}  // namespace train_lm
