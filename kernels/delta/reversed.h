// The reversed walks, for delta.cu.
#pragma once

#include "layout.cuh"

namespace lasp::gpu::delta_hopper {

int launch_reversed(const DeltaReversed &p, const Slots &slots, Stream stream);
int load_reversed();

}  // namespace lasp::gpu::delta_hopper
