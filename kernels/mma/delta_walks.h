// The walks of the delta rule by mma.sync among themselves: how their instances are found.
#pragma once

#include "../delta/layout.cuh"

namespace lasp::gpu::mma_delta {

// An instance for so many rows of K or more: the columns of V of a block, and its bytes of shared memory, of a
// chunk and besides. `split`: where K is above 64, two warps for 16 columns.
template <class Pass>
struct WalkKernel {
  void (*function)(int64_t, Pass, delta_hopper::Slots, int stages);
  int columns, bytes, besides;
};
WalkKernel<DeltaForward> forward_kernel(DType type, bool decay, int32_t dim_k, bool split);
WalkKernel<DeltaReversed> reversed_kernel(DType type, bool decay, int32_t dim_k, bool split);

// E and Z of stretches (delta_forward.cuh, delta_reversed.cuh). `d_v`: in float32, and added to what is there, or
// not.
int launch_stretch_errors(const DeltaForward &pass, const delta_hopper::Slots &slots, void *kept, Stream stream);
int launch_stretch_written(const DeltaReversed &pass, const delta_hopper::Slots &slots, void *kept,
                           const DeltaGradients &d_v, Stream stream);
int load_stretch_errors();
int load_stretch_written();
// The gradients of stretches from them; of the heads' decays too where the pass is the last.
int launch_stretch_gradients(const DeltaGradients &pass, const delta_hopper::Slots &slots, const void *errors,
                             const void *written, float *token_d_g, Stream stream);
int load_stretch_gradients();

constexpr int kWalkThreads = 128, kMostStages = 2;

}  // namespace lasp::gpu::mma_delta
