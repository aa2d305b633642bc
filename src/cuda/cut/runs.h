// How a rank's tokens are cut into runs for a device, as its kernels read them (kernels/launch.h). Pure, like
// token_partition.h.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "core/token_partition.h"
#include "kernels/launch.h"

namespace lasp {

// A run counts its tokens in 32 bits.
inline constexpr int64_t kLongestStep = std::numeric_limits<int32_t>::max();

// Each of the partition's segments, as one of runs of `run_tokens`.
std::vector<gpu::Segment> make_segments(const TokenPartition &partition, int64_t run_tokens);

// Runs of `tokens` tokens, each a part of one of `whole`.
std::vector<gpu::Run> make_runs(const TokenPartition &partition, int64_t tokens, int64_t whole);

// The tables of a cut into runs of `run_tokens`, and into parts of them of `state_tokens` by which states are found
// (cuda/backend/tables.h, Partition). In arrays of two, [0] is forward and [1] reversed.
struct CutTables {
  std::vector<gpu::Segment> segments;
  std::vector<gpu::Run> state_runs, followed[2], leading[2], runs[2], consumers[2], independent[2], beginnings;
  int64_t num_checkpoints = 0;
};
CutTables cut_runs(const TokenPartition &partition, int64_t run_tokens, int64_t state_tokens);

// Runs of `run_tokens` cut again, into short ones of at most `tokens` tokens, and these by window: as many at a
// time as `most`, but never less than one of the longer runs has. States are counted within a window, and each
// longer run is a segment of its own, since the state that enters it is known: with states in parts of
// `state_tokens`, that of its first part, or reversed its last.
struct ShortRunTables {
  struct Window {
    int64_t first_run = 0, num_runs = 0, first_segment = 0, num_segments = 0;
  };
  std::vector<Window> windows;  // one at least
  std::vector<gpu::Run> runs;
  std::vector<gpu::Segment> segments;
  std::vector<int64_t> entered_at[2];  // by segment: which state enters, each way
  int64_t most = 0;                    // runs of the largest window
};
ShortRunTables cut_short_runs(const TokenPartition &partition, int64_t run_tokens, int64_t state_tokens,
                              int64_t tokens, int64_t most);

// Short runs of all the tokens, and of the longest of the longer runs.
struct ShortRunCount {
  int64_t all = 0, longest = 0;
};
ShortRunCount count_short_runs(const TokenPartition &partition, int64_t run_tokens, int64_t tokens);

}  // namespace lasp
