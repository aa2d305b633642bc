// The Hopper kernel of a linear pass, and its launch. A block walks one run of one head in chunks of 64 tokens and
// owns kSlice columns of y; its warps are specialised (producer.cuh, scale_tokens.cuh, state.cuh, output.cuh) and
// meet at mbarriers:
//
//   full[s]         stage s holds a, b, c (copy warp: by TMA) and the decay factors (decay warp)
//   empty[s]        this block's consumers are done with stage s
//   free[s]         so are those of every block in the cluster, say their copy warps: a and b may be sent to all
//   tail            the TMA of a partial chunk: the copy warp then clears its other rows and arrives at full
//
//   scaled_full[i]   copy i of the scaled c is there
//   scaled_empty[i]  the state group has multiplied by it
//
//   state_full[i]   the rounded state before the chunk is in copy i (state group)
//   state_empty[i]  its output group has read it
#pragma once

#include <cuda_runtime_api.h>

#include "linear_pass.h"
#include "output.cuh"
#include "producer.cuh"
#include "scale_tokens.cuh"
#include "state.cuh"

namespace lasp::gpu::hopper {

template <int kDim, int kSlice>
__device__ __forceinline__ void init_barriers(const PassParams &p, const Block<kDim, kSlice> &block) {
  using L = Layout<kDim, kSlice>;
  // Warps that read a stage: of the state group, of the output group whose turn it is, of the group that scales if
  // that is another. Where only states are wanted all output groups scale.
  const bool scales = p.decay != Decay::kNone;
  const uint32_t consumers = p.y ? 8 + (scales && L::kScaleGroup ? 4 : 0) : 4 + (scales ? 4 * kOutputGroups : 0);
  for (uint32_t s = 0; s < L::kStages; ++s) {
    barrier_init(block.full(s), 2 * kWarpArrivals);
    barrier_init(block.empty(s), consumers * kWarpArrivals);
    barrier_init(block.free(s), cluster_size());
  }
  for (uint32_t i = 0; i < 2; ++i) {
    barrier_init(block.state_full(i), 4 * kWarpArrivals);
    barrier_init(block.state_empty(i), 4 * kWarpArrivals);
    barrier_init(block.scaled_full(i), 4 * kWarpArrivals);
    barrier_init(block.scaled_empty(i), 4 * kWarpArrivals);
  }
  barrier_init(block.tail(), 1);
  barrier_init_fence();
}

template <typename T, bool kScalar, int kDim, int kSlice>
__global__ void __launch_bounds__(Layout<kDim, kSlice>::kThreads, 1)
    linear_pass_kernel(const __grid_constant__ PassParams p) {
  extern __shared__ unsigned char shared[];
  using L = Layout<kDim, kSlice>;
  const Block<kDim, kSlice> block(p, shared);
  if (!block.wanted(p)) return;
  const int warp = __shfl_sync(~0u, int(threadIdx.x / 32), 0), group = warp / 4;
  if (threadIdx.x == 0) init_barriers(p, block);
  __syncwarp();
  cluster_sync();
  const bool scales = p.decay != Decay::kNone;
  if (group < kOutputGroups) {
    take_registers<L::kOutputRegisters>();
    if (p.y) {
      compute_output<T, kScalar>(p, block, group);
    } else if (scales) {
      scale_slices<T>(block, group, kOutputGroups);
    }
  } else if (group == kOutputGroups) {
    take_registers<L::kStateRegisters>();
    StateGroup<T, kDim, kSlice>(p, block).run();
  } else if (L::kScaleGroup && group == kOutputGroups + 1) {
    give_registers<L::kScaleRegisters>();
    if (scales && p.y) scale_slices<T>(block, 0, 1);
  } else {
    give_registers<L::kProducerRegisters>();
    if (warp == 4 * L::kProducerGroup) CopyWarp<kDim, kSlice>(p, block).run();
    if (warp == 4 * L::kProducerGroup + 1) DecayWarp<T, kScalar, kDim, kSlice>(p, block).run();
  }
  __syncwarp();
  cluster_sync();  // no block leaves while another may write into it or arrive at its barriers
}

template <typename T, bool kScalar, int kDim, int kSlice>
int enqueue(const PassParams &params, PassShape shape, int64_t blocks, Stream stream, int *clusters) {
  constexpr auto kKernel = linear_pass_kernel<T, kScalar, kDim, kSlice>;
  constexpr int kBytes = Layout<kDim, kSlice>::kBytes + Layout<kDim, kSlice>::kAlignment;
  static_assert(kBytes <= 227 * 1024);
  cudaError_t status = cudaFuncSetAttribute(reinterpret_cast<const void *>(kKernel),
                                            cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (status != cudaSuccess) return status;
  cudaLaunchAttribute cluster = {};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {unsigned(shape.cluster), 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(unsigned(blocks));
  config.blockDim = dim3(Layout<kDim, kSlice>::kThreads);
  config.dynamicSmemBytes = kBytes;
  config.stream = stream;
  config.attrs = &cluster;
  config.numAttrs = 1;
  if (clusters) return cudaOccupancyMaxActiveClusters(clusters, reinterpret_cast<const void *>(kKernel), &config);
  void *arguments[] = {const_cast<PassParams *>(&params)};
  return cudaLaunchKernelExC(&config, reinterpret_cast<const void *>(kKernel), arguments);
}

template <typename T>
int enqueue_typed(const PassParams &params, PassShape shape, int64_t blocks, Stream stream, int *clusters) {
  const bool scalar = params.decay == Decay::kScalar;
  if (params.a_dim == 128 && shape.slice == 64) {
    return scalar ? enqueue<T, true, 128, 64>(params, shape, blocks, stream, clusters)
                  : enqueue<T, false, 128, 64>(params, shape, blocks, stream, clusters);
  }
  if (params.a_dim == 128) {
    return scalar ? enqueue<T, true, 128, 32>(params, shape, blocks, stream, clusters)
                  : enqueue<T, false, 128, 32>(params, shape, blocks, stream, clusters);
  }
  return scalar ? enqueue<T, true, 64, 32>(params, shape, blocks, stream, clusters)
                : enqueue<T, false, 64, 32>(params, shape, blocks, stream, clusters);
}

}  // namespace lasp::gpu::hopper
