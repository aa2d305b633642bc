// Short runs inside the runs of a device's passes: every token in one of them, in order; windows as large as
// allowed; states and entering states counted as the kernels read them.
#include "cuda/cut/runs.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace lasp {
namespace {

TokenPartition packed_partition(std::vector<int64_t> offsets, int64_t batch) {
  Problem p;
  p.packed = batch == 1;
  p.batch = batch;
  p.chunk = 16;
  p.num_sequences = batch == 1 ? static_cast<int64_t>(offsets.size()) - 1 : batch;
  TokenRanges ranges;
  ranges.begin = {0, offsets.back()};
  if (batch != 1) offsets.clear();
  return make_token_partition(p, ranges, 0, offsets);
}

constexpr int64_t kRun = 48, kState = 24;

void expect_whole(const TokenPartition &partition, int64_t tokens, int64_t most) {
  SCOPED_TRACE("short runs of " + std::to_string(tokens) + ", at most " + std::to_string(most) + " in a window");
  const ShortRunTables cut = cut_short_runs(partition, kRun, kState, tokens, most);
  const std::vector<gpu::Run> wholes = make_runs(partition, kRun, kRun), parts = make_runs(partition, kState, kRun);
  const ShortRunCount count = count_short_runs(partition, kRun, tokens);
  ASSERT_EQ(static_cast<int64_t>(cut.runs.size()), count.all);
  ASSERT_EQ(cut.segments.size(), wholes.size());
  size_t at_run = 0, at_segment = 0;
  int64_t largest = 0, longest = 0;
  for (const ShortRunTables::Window &window : cut.windows) {
    EXPECT_EQ(window.first_run, static_cast<int64_t>(at_run));
    EXPECT_EQ(window.first_segment, static_cast<int64_t>(at_segment));
    EXPECT_TRUE(window.num_runs <= most || window.num_segments == 1);
    if (&window != &cut.windows.back()) {  // the next one's first would not have fitted
      const gpu::Segment &next = cut.segments[at_segment + static_cast<size_t>(window.num_segments)];
      EXPECT_GT(window.num_runs + next.num_runs, most);
    }
    int64_t state = 0;
    for (int64_t s = 0; s < window.num_segments; ++s, ++at_segment) {
      const gpu::Segment &segment = cut.segments[at_segment];
      const gpu::Run &whole = wholes[at_segment];
      EXPECT_EQ(segment.first_run, state);
      longest = std::max(longest, segment.num_runs);
      int64_t begin = whole.begin;
      for (int64_t n = 0; n < segment.num_runs; ++n, ++at_run, ++state) {
        const gpu::Run &run = cut.runs[at_run];
        EXPECT_EQ(run.row, whole.row);
        EXPECT_EQ(run.segment, s);
        EXPECT_EQ(run.state, state);
        EXPECT_EQ(run.begin, begin);
        EXPECT_TRUE(run.length >= 1 && run.length <= tokens);
        begin += run.length;
      }
      EXPECT_EQ(begin, whole.begin + whole.length);
      // The states that enter, among those of the parts: before its first token and after its last.
      const gpu::Run &first = parts[static_cast<size_t>(cut.entered_at[0][at_segment])],
                     &last = parts[static_cast<size_t>(cut.entered_at[1][at_segment])];
      EXPECT_EQ(first.begin, whole.begin);
      EXPECT_EQ(last.begin + last.length, whole.begin + whole.length);
      EXPECT_TRUE(first.row == whole.row && last.row == whole.row);
    }
    EXPECT_EQ(state, window.num_runs);
    largest = std::max(largest, window.num_runs);
  }
  EXPECT_EQ(at_run, cut.runs.size());
  EXPECT_EQ(at_segment, cut.segments.size());
  EXPECT_EQ(largest, cut.most);
  EXPECT_EQ(longest, count.longest);
}

TEST(ShortRuns, HoldEveryTokenOnce) {
  for (const TokenPartition &partition :
       {packed_partition({0, 1, 40, 40, 200, 333, 334, 500}, 1), packed_partition({0, 331}, 3)})
    for (const int64_t tokens : {8, 16, 48})
      for (const int64_t most : {0, 1, 6, 7, 20, 1000}) expect_whole(partition, tokens, most);
}

TEST(ShortRuns, OfNoTokensAreOneEmptyWindow) {
  const ShortRunTables cut = cut_short_runs(packed_partition({0, 0}, 2), kRun, kState, 16, 5);
  ASSERT_EQ(cut.windows.size(), 1u);
  EXPECT_EQ(cut.windows[0].num_runs, 0);
  EXPECT_TRUE(cut.runs.empty());
  EXPECT_EQ(cut.most, 0);
}

}  // namespace
}  // namespace lasp
