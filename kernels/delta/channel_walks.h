// The launches where decay is per channel, for forward.cu, reversed.cu, gradients.cu and passes.cu.
#pragma once

#include "layout.cuh"

namespace lasp::gpu::delta_hopper::channel {

// `kept`: of stretches, what their gradients need; else empty.
int launch_forward(const DeltaForward &p, const Slots &slots, const Stretches &kept, Stream stream);
int launch_reversed(const DeltaReversed &p, const Slots &slots, Stream stream);
int load_forward();
int load_reversed();

}  // namespace lasp::gpu::delta_hopper::channel
