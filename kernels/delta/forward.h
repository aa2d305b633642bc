// The forward walks, for delta.cu.
#pragma once

#include "layout.cuh"

namespace lasp::gpu::delta {

int launch_forward(const DeltaForward &p, const Slots &slots, Stream stream);
int load_forward();

}  // namespace lasp::gpu::delta
