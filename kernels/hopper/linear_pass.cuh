// The Hopper kernel of a linear pass (launch.h, LinearPass), and its launch. A block walks the chunks of 64 tokens
// of one run of one head and owns kSlice columns of y and of the state R. Of each chunk, with G the running sum of
// its log decays, T their total and R the state before it in the direction of the walk:
//
//   forward    y_i = scale (exp(G_i) R^T a_i      +  sum_{j <= i} exp(G_i - G_j) (a_i . b_j) c_j)
//              R   = exp(T) R                     +  sum_j b_j (exp(T - G_j) c_j)^T
//   reversed   y_j = scale (exp(T - G_j) R^T a_j  +  sum_{i >= j} exp(G_i - G_j) (a_j . b_i) c_i)
//              R   = exp(T) R  +  exp(G_0) sum_i b_i (exp(G_i - G_0) c_i)^T      (G_0: of its first token)
//
// Warpgroups (layout.cuh has their registers):
//
//   output 0, 1   y of the even, of the odd chunks of the walk (output.cuh)
//   state         R in float32 registers; a rounded copy of it before each chunk (state.cuh)
//   scale         c times its factor, as a high and a low part (scale_tokens.cuh). Only with kSlice = 32: else,
//                 and where y is not wanted, the output groups do it
//   producer      warp 0 copies a, b and c by TMA, warp 1 computes the decay factors (producer.cuh); two are idle
//
// Barriers. Arrivals are warps: one lane arrives for each. [s] is one of kStages stages; [i] one of two copies:
// chunk n of the walk uses copy n % 2.
//
//   name             arrives                          count      waits           protects
//   full[s]          copy warp (and the bytes of its  2          state, output,  a, b, c and decay factors of a
//                    TMA), decay warp                            scale           stage, until they are there
//   empty[s]         state group, the output group    see        copy warp,      the same, until all have read
//                    whose turn it is, who scales     below      decay warp      them
//   free[s]          copy warps of all blocks of the  cluster's  copy warp       the same in the cluster's other
//                    cluster, after empty[s]          blocks                     blocks, where TMA writes too
//   tail             copy warp with the bytes of the  1          copy warp       rows past the run's end: cleared
//                    run's partial chunk, if any                                 only when TMA has written them
//   scaled_full[i]   who scales                       4          state           the scaled c, until it is there
//   scaled_empty[i]  state group                      4          who scales      the same, until it is read
//   state_full[i]    state group                      4          output          the rounded R, until it is there
//   state_empty[i]   output group                     4          state           the same, until it is read
//
//   count of empty[s]: 8 with y, 12 where a scale group does its work, too; states only: 4, with decay 12
//
// Time runs to the right; each role runs ahead as far as its barriers let it:
//
//   copy, decay   | chunks n+1, n+2 ..  while stages are empty
//   scale         | c of n        | c of n+1      |
//   state         | copy of R     | R += chunk n  | copy of R     | R += n+1
//   output 0      | a b^T of n    | R^T a, scores | P c, store y of n          |
//   output 1      | .. of n-1                     | a b^T of n+1  | R^T a ..
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
  const Block<kDim, kSlice> block(p, shared, kScalar);
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
    if (warp == 4 * L::kProducerGroup + 1) DecayWarp<T, kScalar, Block<kDim, kSlice>>(p, block).run();
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
  if (shape.slice == 64 && params.a_dim > 64) {
    return scalar ? enqueue<T, true, 128, 64>(params, shape, blocks, stream, clusters)
                  : enqueue<T, false, 128, 64>(params, shape, blocks, stream, clusters);
  }
  if (shape.slice == 64) {
    return scalar ? enqueue<T, true, 64, 64>(params, shape, blocks, stream, clusters)
                  : enqueue<T, false, 64, 64>(params, shape, blocks, stream, clusters);
  }
  if (params.a_dim > 64) {
    return scalar ? enqueue<T, true, 128, 32>(params, shape, blocks, stream, clusters)
                  : enqueue<T, false, 128, 32>(params, shape, blocks, stream, clusters);
  }
  return scalar ? enqueue<T, true, 64, 32>(params, shape, blocks, stream, clusters)
                : enqueue<T, false, 64, 32>(params, shape, blocks, stream, clusters);
}

}  // namespace lasp::gpu::hopper
