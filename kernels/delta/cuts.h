// In how many parts long runs are cut.
#pragma once

#include "../delta.h"

namespace lasp::gpu::delta_hopper {

// Microseconds of a chunk, of a block that walks back, on an H200; not where decay is per channel.
constexpr double kBack = 3.7;

struct Cut {
  int32_t parts = 1, chunks = 0;  // of a part; 0: all
  bool maps_alone = false;        // each slice of M has a block of its own (Slots::maps_alone)
  // The whole run is walked beside the preparation of its chunks, which begins with so many of all heads
  // (channel_beside.cuh); 0: after it.
  int32_t early = 0;
  double time = 0;
};
// That of a walk back, which may be as the forward pass cut its runs and left their M.
struct BackCut : Cut {
  bool kept = false;
};

int32_t of_stretch(const DeltaInputs &p);  // chunks
// Turns that so many blocks take, one on a multiprocessor.
double rounds(int64_t blocks);
// Blocks that walk as many columns of all runs: of two slices each, or where decay is per channel of one.
int64_t blocks_of(const DeltaInputs &p, int64_t num_runs, int32_t columns);

Cut cut_of(const DeltaInputs &p, int64_t num_runs, bool reversed);
// `maps_runs`: DeltaReversed::maps_runs.
BackCut back_cut_of(const DeltaInputs &p, int64_t num_runs, int64_t maps_runs);
// Whether a forward pass that cuts runs so has use for M of their parts afterwards.
bool has_kept_maps(const DeltaInputs &p, const Cut &cut);

}  // namespace lasp::gpu::delta_hopper
