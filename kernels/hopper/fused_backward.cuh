// The backward kernel for Hopper whose blocks hold a head's whole state, and its launch. A block owns one run of
// one head. Its roles (fused_backward_walk.cuh, fused_backward_feed.cuh) meet at mbarriers:
//
//   full[2], empty[2]     a step's tiles have come by TMA, and its decay factors; both groups have read them
//   tail                  the TMA of the run's partial chunk, whose other rows the copy warp then clears
//   state_full            both groups have published their halves of the state or its gradient
#pragma once

#include <cuda_runtime_api.h>

#include "fused_backward_feed.cuh"
#include "fused_backward_internal.h"
#include "fused_backward_walk.cuh"

namespace lasp::gpu::hopper::fused {

__device__ __forceinline__ void init_barriers(const Block &block) {
  for (uint32_t i = 0; i < Layout::kStages; ++i) {
    barrier_init(block.full(i), 2 * kWarpArrivals);
    barrier_init(block.empty(i), kConsumers * kWarpArrivals);
  }
  barrier_init(block.tail(), 1);
  barrier_init(block.state_full(), kConsumers * kWarpArrivals);
  barrier_init_fence();
}

template <typename T, bool kGradient>
__global__ void __launch_bounds__(kBlockThreads, 1) fused_backward_kernel(const __grid_constant__ Params p) {
  extern __shared__ unsigned char shared[];
  const Block block(p, shared);
  const int warp = __shfl_sync(~0u, int(threadIdx.x / 32), 0);
  if (threadIdx.x == 0) init_barriers(block);
  __syncthreads();
  if (warp < kConsumers) {
    take_registers<kWalkers>();
    Walker<T, kGradient>(p, block).run();
  } else {
    give_registers<kFeeds>();
    if (warp == kConsumers) copy_tiles<kGradient>(p, block);
    if (warp == kConsumers + 1) feed_decays<T>(p, block);
  }
}

template <typename T, bool kGradient>
int enqueue_kernel(const Params &params, int64_t blocks, Stream stream) {
  constexpr int kBytes = Layout::kBytes + Layout::kAlignment;
  const auto kernel = fused_backward_kernel<T, kGradient>;
  const cudaError_t status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (status != cudaSuccess || blocks == 0) return status;
  kernel<<<dim3(unsigned(blocks)), dim3(kBlockThreads), kBytes, stream>>>(params);
  return cudaGetLastError();
}

template <typename T>
int enqueue(const Params &params, int64_t blocks, Stream stream) {
  return params.parts ? enqueue_kernel<T, true>(params, blocks, stream)
                      : enqueue_kernel<T, false>(params, blocks, stream);
}

}  // namespace lasp::gpu::hopper::fused
