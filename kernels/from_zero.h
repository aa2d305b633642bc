// Launches for passes in which no state is given at the edges of the sequences: zero enters each, nobody writes it
// to memory, and nobody reads it there.
#pragma once

#include "launch.h"

namespace lasp::gpu {

// A scan without `first_state` that leaves out the state that enters a sequence, where there are so many parts, on
// the device, after whose run another one comes (PackedTables::live). With none of them, and without a map, there
// is nothing to do, and entry decays are left as they are.
struct ScanFromZero : StateScan {
  const int64_t *followed = nullptr;
};
int launch_scan_from_zero(const ScanFromZero &, Stream stream);

// What such a scan asks for: where `followed` is zero, nothing, and factors and counts are left as they are.
int launch_run_factors_from_zero(const RunFactors &, const int64_t *followed, Stream stream);

// d_state_in as such a scan leaves it: zero enters the runs that end their sequence.
int launch_fused_backward_from_zero(const FusedBackward &, Stream stream);

}  // namespace lasp::gpu
