// The forward walks, for passes.cu.
#pragma once

#include "layout.cuh"

namespace lasp::gpu::delta_hopper {

int launch_forward(const DeltaForward &p, const Slots &slots, Stream stream);
// Of stretches: from their checkpoints, what their gradients need. `early`: the walk may begin while the launch
// before it, channel_finish.cu's, still runs.
int launch_stretches(const DeltaForward &p, const Slots &slots, const Stretches &kept, bool early, Stream stream);
int load_forward();

}  // namespace lasp::gpu::delta_hopper
