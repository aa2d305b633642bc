// Sums, or what else joins two numbers, over the lanes of a warp or a part of one.
#pragma once

#include <cuda_runtime_api.h>

namespace lasp::gpu {

// `join` of x of all lower lanes and this one; and of the lower ones alone, of none: `none`.
template <int kWidth, class T, class Join>
__device__ __forceinline__ T up_to(T x, Join join) {
  for (int step = 1; step < kWidth; step *= 2) {
    const T lower = __shfl_up_sync(~0u, x, step, kWidth);
    if (threadIdx.x % kWidth >= step) x = join(lower, x);
  }
  return x;
}
template <int kWidth, class T>
__device__ __forceinline__ T below(T up_to, T none) {
  const T lower = __shfl_up_sync(~0u, up_to, 1, kWidth);
  return threadIdx.x % kWidth == 0 ? none : lower;
}

}  // namespace lasp::gpu
