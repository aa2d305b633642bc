// The backward kernel for Hopper whose blocks hold a head's whole state, and its launch. A block owns one run of
// one head. Its roles (fused_backward_walk.cuh, fused_backward_producer.cuh) meet at mbarriers:
//
//   full[2], empty[2]     a step's tiles have come by TMA, and its decay factors; both groups have read them
//   tail                  the TMA of the run's partial chunk, whose other rows the copy warp then clears
//   state_full            both groups have published their halves of the state or its gradient
#pragma once

#include <cuda_runtime_api.h>

#include "fused_backward_internal.h"
#include "fused_backward_producer.cuh"
#include "fused_backward_walk.cuh"

namespace lasp::gpu::hopper::fused {

template <typename T, int kMembers>
__device__ __forceinline__ void init_barriers(const Block &block) {
  if constexpr (kMembers > 1) GroupResults<T, kMembers>::init_barriers(block);
  for (uint32_t i = 0; i < Layout::kStages; ++i) {
    barrier_init(block.full(i), 2 * kWarpArrivals);
    barrier_init(block.empty(i), kConsumers * kWarpArrivals);
  }
  barrier_init(block.tail(), 1);
  barrier_init(block.state_full(), kConsumers * kWarpArrivals);
  barrier_init_fence();
}

template <typename T, bool kGradient, int kMembers>
__global__ void __launch_bounds__(kBlockThreads, 1) fused_backward_kernel(const __grid_constant__ Params p) {
  extern __shared__ unsigned char shared[];
  const Block block(p, shared);
  const int warp = __shfl_sync(~0u, int(threadIdx.x / 32), 0);
  if (threadIdx.x == 0) init_barriers<T, kMembers>(block);
  __syncthreads();
  if constexpr (kMembers > 1) cluster_sync();
  if (warp < kConsumers) {
    take_registers<kConsumerRegisters>();
    Walker<T, kGradient, kMembers>(p, block).run();
  } else {
    give_registers<kProducerRegisters>();
    if (warp == kConsumers) produce_tiles<kGradient, kMembers>(p, block);
    if (warp == kConsumers + 1) produce_decays<T>(p, block);
  }
  if constexpr (kMembers > 1) {
    __syncwarp();
    cluster_sync();  // no block leaves while another reads its results or arrives at its barriers
  }
}

template <typename T, bool kGradient, int kMembers>
int enqueue_kernel(const Params &params, int64_t blocks, Stream stream, int *clusters) {
  constexpr int kBytes = Layout::kBytes + Layout::kAlignment;
  constexpr auto kKernel = fused_backward_kernel<T, kGradient, kMembers>;
  const cudaError_t status = cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (status != cudaSuccess || (blocks == 0 && clusters == nullptr)) return status;
  cudaLaunchAttribute cluster = {};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {kMembers, 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(unsigned(clusters != nullptr ? kMembers : blocks));
  config.blockDim = dim3(kBlockThreads);
  config.dynamicSmemBytes = kBytes;
  config.stream = stream;
  config.attrs = &cluster;
  config.numAttrs = kMembers > 1 ? 1 : 0;
  if (clusters != nullptr) return cudaOccupancyMaxActiveClusters(clusters, kKernel, &config);
  return cudaLaunchKernelEx(&config, kKernel, params);
}

template <typename T, int kMembers>
int enqueue(const Params &params, int64_t blocks, Stream stream, int *clusters) {
  return params.terms ? enqueue_kernel<T, true, kMembers>(params, blocks, stream, clusters)
                      : enqueue_kernel<T, false, kMembers>(params, blocks, stream, clusters);
}

template <typename T>
int enqueue_grouped(const Params &params, int64_t blocks, Stream stream, int *clusters) {
  if (params.members == 2) return enqueue<T, 2>(params, blocks, stream, clusters);
  if (params.members == 4) return enqueue<T, 4>(params, blocks, stream, clusters);
  return enqueue<T, 8>(params, blocks, stream, clusters);
}

}  // namespace lasp::gpu::hopper::fused
