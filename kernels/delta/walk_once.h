// All gradients on the walk back for results (gradients_parts.cu), for passes.cu.
#pragma once

#include "layout.cuh"

namespace lasp::gpu::delta_hopper {

// How many stretches the gradients work on at once, and their chunks of all heads.
int64_t window_runs(const DeltaGradients &p);
int64_t window_chunks(const DeltaGradients &p);
// Of the gradients' workspace what launches leave for the next ones.
int64_t partial_bytes(const DeltaGradients &p);

// The walk for results of a DeltaReversed with gradients, whose slots say how its runs are cut.
int run_walk_once(const DeltaReversed &p, const Slots &slots, Stream stream);

}  // namespace lasp::gpu::delta_hopper
