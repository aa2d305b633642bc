// A rank's tokens as the launches of the delta rule read them: the only place that knows how a plan's tables are
// made.
#pragma once

#include "cuda/backend/tables.h"

namespace lasp::cuda {

struct DeltaTables {
  // Checkpoints stand before every `spacing` tokens of a segment. Throws for a segment that no run counts.
  DeltaTables(Tables &tables, const TokenPartition &partition, int64_t spacing);

  DeviceArray<gpu::Segment> segments;
  // A run for each segment, in the direction of the pass: Run::state is the row where a state from another rank
  // enters, else the sequence.
  DeviceArray<gpu::Run> runs[2];
  DeviceArray<gpu::Run> stretches;  // between checkpoints; Run::entered as backward has it
  DeviceArray<gpu::Run> steps;      // of decoding: Run::state is the sequence
  DeviceArray<int64_t> empty_sequences;
  int64_t num_checkpoints = 0;
  // Whether a state goes through a row of this rank, in on one side and out on the other; whether one enters.
  bool passes_through = false, consumes = false;
};

}  // namespace lasp::cuda
