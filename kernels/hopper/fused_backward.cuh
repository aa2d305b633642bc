// The backward kernel for Hopper whose blocks hold a head's whole state, and its launch (launch.h, FusedBackward).
// A block owns one run of one head. It takes the stretches of 256 tokens between checkpoints from the last to the
// first; in each it walks the four chunks of 64 tokens forward with the state S, from the checkpoint on, and back
// again with dS, the gradient of the state divided by `scale`. Of each chunk, with G the running sum of its log
// decays and T their total, S the state before it and dS the gradient after it:
//
//   forward   dq_i = scale (exp(G_i) S do_i       +  sum_{j <= i} exp(G_i - G_j) (do_i . v_j) k_j)
//             S    = exp(T) S  + sum_j exp(T - G_j) k_j v_j^T
//   back      dk_j = scale (exp(T - G_j) dS v_j   +  sum_{i >= j} exp(G_i - G_j) (v_j . do_i) q_i)
//             dv_j = scale (exp(T - G_j) dS^T k_j +  sum_{i >= j} exp(G_i - G_j) (k_j . q_i) do_i)
//             dS   = exp(T) dS + sum_i exp(G_i) q_i do_i^T
//
// With kGradient it also leaves the terms of the decay's gradient (DecayTerm), which fused_backward_decay.cu adds
// up.
//
//   warps 0 to 3, 4 to 7   two consumer groups, each with 64 rows of S and of dS in registers. Forward each has 64
//                          columns of dq; back group 0 has dk and group 1 dv (fused_backward_walk.cuh)
//   warp 8, warp 9         producers: tiles of v, do, k and q by TMA; decay factors (fused_backward_producer.cuh)
//   warps 10, 11           idle; with a head to each consumer group (kPaired) warp 10 has the second one's factors
//
// Barriers. Arrivals are warps: one lane arrives for each. A step is a chunk on the way forward or back; step n
// uses stage n % 2.
//
//   name         arrives                          count     waits          protects
//   full[2]      warp 8 (and the bytes of its     2         consumers      a step's tiles and decay factors, until
//                TMA), warp 9                                              they are there; with those of a
//                stretch's
//                                                                          first step its checkpoint
//   empty[2]     consumers                        8         warps 8 and 9  the same, until all have read them
//                                                 8         consumers      the copy of S or dS that the step has
//                                                                          read, until its buffer is free
//   tail         warp 8 with the bytes of the     1         warp 8         rows past the run's end: cleared only
//                run's partial chunk, twice                                when TMA has written them
//   state_full   consumers, at each publication   8         consumers      the rounded copy of S or dS, until both
//                                                                          halves are there
//   With grouped heads also one pair for each consumer warp w (fused_backward_group.cuh):
//   offered[w]   warp w of every block of the     kMembers  warp w         the boxes of dk or dv in all blocks,
//                cluster                                                   until they are full
//   taken[w]     the same                         kMembers  warp w         its own boxes, until all have read them
//
// The steps of a run of two stretches:
//
//   stretch   1                          0
//   chunk     4  5  6  7  7  6  5  4     0  1  2  3  3  2  1  0
//   way       forward     back           forward     back
//
// A step forward (back: the same order with dS, q and do, and the scores of dk and dv). A warp that begins a
// product waits until the tensor cores take it. So products begin by quarters, with work of the CUDA cores between
// them:
//
//   tensor cores   |         | S += k v^T | do S^T    | ..        | ..  | ..  | P k | do v^T of the next step, ..
//   CUDA cores     | scale k |            | copy of S | P of do v^T, by quarters  |     | terms, dq to its boxes ..
//   TMA            | tiles of the next step, once its stage is empty   | dq of the step before leaves
#pragma once

#include <cuda_runtime_api.h>

#include "fused_backward_internal.h"
#include "fused_backward_producer.cuh"
#include "fused_backward_walk.cuh"

namespace lasp::gpu::hopper::fused {

template <typename T, int kMembers>
__device__ __forceinline__ void init_barriers(const Block<kMembers> &block) {
  if constexpr (kMembers > 1) GroupResults<T, kMembers>::init_barriers(block);
  for (uint32_t i = 0; i < Layout::kStages; ++i) {
    barrier_init(block.full(i), (1 + block.kHeads) * kWarpArrivals);
    barrier_init(block.empty(i), kConsumers * kWarpArrivals);
  }
  barrier_init(block.tail(), 1);
  for (uint32_t group = 0; group < block.kHeads; ++group)
    barrier_init(block.state_full(group), kConsumers / block.kHeads * kWarpArrivals);
  barrier_init_fence();
}

template <typename T, bool kGradient, int kMembers>
__global__ void __launch_bounds__(kBlockThreads, 1) fused_backward_kernel(const __grid_constant__ Params p) {
  extern __shared__ unsigned char shared[];
  const Block<kMembers> block(p, shared);
  if (block.chunks == 0) return;  // the same for all blocks of a cluster
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
    if (warp > kConsumers && warp <= kConsumers + block.kHeads)
      produce_decays<T, kMembers>(p, block, warp - kConsumers - 1);
  }
  if constexpr (kMembers > 1) {
    __syncwarp();
    cluster_sync();  // no block leaves while another reads its results or arrives at its barriers
  }
}

template <typename T, bool kGradient, int kMembers>
int enqueue_kernel(const Params &params, int64_t blocks, Stream stream) {
  constexpr int kBytes = Layout::kBytes + Layout::kAlignment;
  constexpr auto kKernel = fused_backward_kernel<T, kGradient, kMembers>;
  const cudaError_t status = cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (status != cudaSuccess || blocks == 0) return status;
  cudaLaunchAttribute cluster = {};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {kMembers > 1 ? kMembers : 1, 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(unsigned(blocks), kMembers <= kTiled ? unsigned(params.num_tiles) : 1);
  config.blockDim = dim3(kBlockThreads);
  config.dynamicSmemBytes = kBytes;
  config.stream = stream;
  config.attrs = &cluster;
  config.numAttrs = kMembers > 1 ? 1 : 0;
  return cudaLaunchKernelEx(&config, kKernel, params);
}

template <typename T, int kMembers>
int enqueue(const Params &params, int64_t blocks, Stream stream) {
  return params.terms ? enqueue_kernel<T, true, kMembers>(params, blocks, stream)
                      : enqueue_kernel<T, false, kMembers>(params, blocks, stream);
}

template <typename T>
int enqueue_grouped(const Params &params, int64_t blocks, Stream stream) {
  if (params.members == 2) return enqueue<T, 2>(params, blocks, stream);
  if (params.members == 4) return enqueue<T, 4>(params, blocks, stream);
  return enqueue<T, 8>(params, blocks, stream);
}

template <typename T>
int enqueue_narrow(const Params &params, int64_t blocks, Stream stream) {
  return params.form == kPaired ? enqueue<T, kPaired>(params, blocks, stream)
                                : enqueue<T, kNarrow>(params, blocks, stream);
}

}  // namespace lasp::gpu::hopper::fused
