// The walks of the delta rule by mma.sync among themselves: how their instances are found.
#pragma once

#include "../delta/layout.cuh"

namespace lasp::gpu::mma_delta {

// An instance for so many rows of K or more: the columns of V of a block, its bytes of shared memory, of a chunk
// and besides, and its threads. `split`: where K is above 64, two warps for 16 columns.
template <class Pass>
struct WalkKernel {
  void (*function)(int64_t, Pass, delta_hopper::Slots, int stages);
  int columns, bytes, besides, threads;
};
WalkKernel<DeltaForward> forward_kernel(DType type, bool decay, int32_t dim_k, bool split);
WalkKernel<DeltaReversed> reversed_kernel(DType type, bool decay, int32_t dim_k, bool split);

// The gradients of stretches from what walks have kept; of the heads' decays too where the pass is the last.
int launch_stretch_gradients(const DeltaGradients &pass, float *token_d_g, Stream stream);
int load_stretch_gradients();

constexpr int kMostStages = 2;

}  // namespace lasp::gpu::mma_delta
