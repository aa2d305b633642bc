// Tokens of one head into shared memory as float32, for the recurrent kernels: any type, stride and alignment.
// float32 travels without passing through registers and is there after wait_for_tiles(); the rest is there when
// fetch returns. What does not exist, tokens or elements, is zero.
#pragma once

#include <cuda_pipeline.h>

#include "device.cuh"

namespace lasp::gpu {

inline constexpr int kTile = 32;  // rows or columns of a warp

struct Source {
  const void *data;
  DType type;
  int64_t base, stride;  // element 0 of the first token, from token to token
  int dim, count;        // elements and tokens that exist
};

__device__ inline Source source_of(const Tensor &x, DType type, const Run &run, int64_t begin, int head,
                                   int32_t heads, int count) {
  return {x.data, type, offset_of(x, run.row, begin, head, heads), x.strides.token, x.dim, count};
}

// Element d of the tokens first, first + step .. below `block`, each `width` after the one before.
template <class T>
__device__ void fetch_converted(float *to, int width, const T *data, const Source &x, int d, int first, int step,
                                int block) {
  constexpr int kAtOnce = 4;
  data += x.base + d + first * x.stride;
#pragma unroll 1
  for (int begin = first; begin < block; begin += kAtOnce * step) {
    T value[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i, data += step * x.stride) {
      value[i] = 0.0f;
      if (d < x.dim && begin + i * step < x.count) value[i] = *data;
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)
      if (begin + i * step < block) to[(begin + i * step) * width] = as_float(value[i]);
  }
}

__device__ inline void fetch(float *to, int width, const Source &x, int d, int first, int step, int block) {
  if (x.type == DType::kBFloat16)
    return fetch_converted(to, width, static_cast<const __nv_bfloat16 *>(x.data), x, d, first, step, block);
  if (x.type == DType::kFloat16)
    return fetch_converted(to, width, static_cast<const __half *>(x.data), x, d, first, step, block);
  const auto *data = static_cast<const float *>(x.data) + x.base + d + first * x.stride;
  to += first * width;
#pragma unroll 1
  for (int t = first; t < block; t += step, data += step * x.stride, to += step * width) {
    const bool there = d < x.dim && t < x.count;
    __pipeline_memcpy_async(to, there ? data : static_cast<const float *>(x.data), sizeof(float),
                            there ? 0 : sizeof(float));
  }
}

// Into [block][rows], a thread to a row.
__device__ inline void fetch_rows(float *to, const Source &x, int block) {
  fetch(to + threadIdx.x, blockDim.x, x, threadIdx.x, 0, 1, block);
}

// Into [block][32], columns [from, from + 32), a warp to a token.
__device__ inline void fetch_columns(float *to, const Source &x, int from, int block) {
  const int lane = threadIdx.x % kTile;
  fetch(to + lane, kTile, x, from + lane, threadIdx.x / kTile, blockDim.x / kTile, block);
}

// Until what this thread has fetched is there; other threads' after a __syncthreads.
__device__ inline void wait_for_tiles() {
  __pipeline_commit();
  __pipeline_wait_prior(0);
}

}  // namespace lasp::gpu
