// The fused backward kernel for Hopper, and its launch. A block owns one run of one head and 32 of its 128 rows of
// K and of V: those columns of dq, dk and dv. It walks the run's chunks of 64 tokens from the last to the first;
// its warpgroups are specialised (fused_backward_query.cuh, _key.cuh, _state.cuh, _feed.cuh) and meet at mbarriers:
//
//   full[t], empty[t]    a tile of the ring holds v, do, k or q of a chunk (by TMA, for the whole cluster); all
//   have read it tail                 the TMA of the run's partial chunk, whose other rows the copy warp then
//   clears ahead_full, _empty   v, k's slice and decay factors of a chunk of the segment ahead state_full, _empty
//   the rounded state before one chunk of a segment (state group -> query group) gradient_full, ...   the rounded
//   gradient of the state after the chunk (state group -> key group) decays_full, ...     a chunk's decay factors
//   (two buffers) parts_full, ...      what a chunk's decay gradient is made of (two buffers)
#pragma once

#include <cuda_runtime_api.h>

#include "fused_backward_feed.cuh"
#include "fused_backward_internal.h"
#include "fused_backward_key.cuh"
#include "fused_backward_query.cuh"
#include "fused_backward_state.cuh"

namespace lasp::gpu::hopper::fused {

__device__ __forceinline__ void init_barriers(const Block &block) {
  const uint32_t blocks = cluster_size();
  for (uint32_t i = 0; i < Layout::kTiles; ++i) {
    barrier_init(block.barrier(i), kWarpArrivals);
    barrier_init(block.barrier(Layout::kTiles + i), kConsumers * blocks * kWarpArrivals);
  }
  for (uint32_t i = 0; i < kSegment; ++i) {
    barrier_init(block.state_full(i), 4 * kWarpArrivals);
    barrier_init(block.state_empty(i), 4 * kWarpArrivals);
  }
  barrier_init(block.tail(), 4);
  barrier_init(block.ahead_full(), 2 + kWarpArrivals);
  barrier_init(block.ahead_empty(), 4 * blocks * kWarpArrivals);
  barrier_init(block.gradient_full(), 4 * kWarpArrivals);
  barrier_init(block.gradient_empty(), 4 * kWarpArrivals);
  for (int i = 0; i < 2; ++i) {
    barrier_init(block.decays_full(i), kWarpArrivals);
    barrier_init(block.decays_empty(i), kConsumers * kWarpArrivals);
    barrier_init(block.parts_full(i), kConsumers * kWarpArrivals);
    barrier_init(block.parts_empty(i), kWarpArrivals);
  }
  barrier_init_fence();
}

template <typename T, bool kGradient>
__global__ void __launch_bounds__(kBlockThreads, 1) fused_backward_kernel(const __grid_constant__ Params p) {
  extern __shared__ unsigned char shared[];
  const Block block(p, shared);
  const int warp = __shfl_sync(~0u, int(threadIdx.x / 32), 0);
  if (threadIdx.x == 0) init_barriers(block);
  __syncwarp();
  cluster_sync();
  if (warp < 4) {
    take_registers<kQueries>();
    QueryGroup<T, kGradient>(p, block).run();
  } else if (warp < 8) {
    take_registers<kKeys>();
    KeyGroup<T, kGradient>(p, block).run();
  } else if (warp < 12) {
    take_registers<kStates>();
    StateGroup<T, kGradient>(p, block).run();
  } else {
    give_registers<kFeeds>();
    if (warp == 12) copy_tiles(p, block);
    if (warp == 13 || warp == 14) feed_decays<T>(p, block, warp == 13);
    if (kGradient && warp == 15) gather_decay_gradient(p, block);
  }
  __syncwarp();
  cluster_sync();  // no block leaves while another may write into it or arrive at its barriers
}

template <typename T, bool kGradient>
int enqueue_kernel(const Params &params, int32_t cluster, int64_t blocks, Stream stream, int *clusters) {
  const void *const kernel = reinterpret_cast<const void *>(fused_backward_kernel<T, kGradient>);
  constexpr int kBytes = Layout::kBytes + Layout::kAlignment;
  const cudaError_t status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (status != cudaSuccess) return status;
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {unsigned(cluster), 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(unsigned(blocks));
  config.blockDim = dim3(kBlockThreads);
  config.dynamicSmemBytes = kBytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  if (clusters) return cudaOccupancyMaxActiveClusters(clusters, kernel, &config);
  void *arguments[] = {const_cast<Params *>(&params)};
  return cudaLaunchKernelExC(&config, kernel, arguments);
}

template <typename T>
int enqueue_typed(const Params &params, int32_t cluster, int64_t blocks, Stream stream, int *clusters) {
  return params.parts ? enqueue_kernel<T, true>(params, cluster, blocks, stream, clusters)
                      : enqueue_kernel<T, false>(params, cluster, blocks, stream, clusters);
}

}  // namespace lasp::gpu::hopper::fused
