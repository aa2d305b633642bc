// The gradients of stretches, for passes.cu.
#pragma once

#include "layout.cuh"

namespace lasp::gpu::delta_hopper {

// `partial`: [checkpoints, H], where decay is per head; what channel::Left has of all stretches, per channel.
int launch_gradients(const DeltaGradients &p, const Slots &slots, const Stretches &kept, float *partial,
                     Stream stream);
// The same where d_q and d_k have half as many heads, for decays other than per channel.
int launch_gradients_of_pairs(const DeltaGradients &p, const Slots &slots, const Stretches &kept, float *partial,
                              Stream stream);
// Both of those, and the walk for results of a DeltaReversed with gradients: of Stretches::window.
int launch_gradients_of_parts(const DeltaReversed &p, const Slots &slots, const Stretches &kept, float *partial,
                              Stream stream);
// d_g per head from `partial` of all stretches.
int launch_sum_partial(const DeltaGradients &p, const float *partial, Stream stream);
int load_gradients();
int load_gradients_of_pairs();
int load_gradients_of_parts();

}  // namespace lasp::gpu::delta_hopper
