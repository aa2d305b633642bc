// A rank's tokens as a device's tables say them: every field of every run and segment, found again here from the
// tokens one by one, for the first, a middle and the last rank of groups over batches and packed sequences.
#include <gtest/gtest.h>

#include <algorithm>

#include "cuda/cut/runs.h"

namespace lasp {
namespace {

constexpr int64_t kTokens = 8, kWhole = 24, kRun = 16;

struct Place {
  const char *name;
  std::vector<int64_t> offsets;  // of packed sequences; none: a batch
  std::vector<int64_t> begins;   // of the ranks, and the end of the last
};
const Place kPlaces[] = {
    {"a batch over three", {}, {0, 50, 131, 170}},
    {"sequences within ranks and over their ends", {0, 7, 7, 40, 90, 131, 140, 170}, {0, 50, 131, 170}},
    {"one sequence over all", {0, 170}, {0, 50, 131, 170}},
    {"a rank without tokens", {0, 60, 170}, {0, 50, 50, 170}},
};

Problem problem_of(const Place &place) {
  Problem p;
  p.packed = !place.offsets.empty();
  p.batch = p.packed ? 1 : 2;
  p.chunk = 16;
  p.num_sequences = p.packed ? static_cast<int64_t>(place.offsets.size()) - 1 : p.batch;
  return p;
}

template <class Check>
void for_all(Check check) {
  for (const Place &place : kPlaces) {
    const Problem problem = problem_of(place);
    TokenRanges ranges;
    ranges.begin = place.begins;
    for (int32_t rank = 0; rank < ranges.nranks(); ++rank) {
      SCOPED_TRACE(std::string(place.name) + ", rank " + std::to_string(rank));
      check(place.offsets, ranges, rank, make_token_partition(problem, ranges, rank, place.offsets));
    }
  }
}

TEST(DeviceRuns, SayWhereEachOneLies) {
  for_all([](const std::vector<int64_t> &offsets, const TokenRanges &ranges, int32_t rank,
             const TokenPartition &partition) {
    const int64_t first = ranges.begin[static_cast<size_t>(rank)];
    int64_t next_segment = 0, in_segment = 0, count = 0;
    for (const gpu::Run &run : make_runs(partition, kTokens, kWhole)) {
      SCOPED_TRACE("run " + std::to_string(count));
      const Segment &segment = partition.segments[static_cast<size_t>(next_segment)];
      EXPECT_EQ(run.state, count++);
      EXPECT_EQ(run.segment, next_segment);
      EXPECT_EQ(run.row, segment.row);
      EXPECT_EQ(run.begin, segment.begin + in_segment);
      EXPECT_EQ(run.length, std::min(kTokens, segment.end - run.begin));
      // The longer run that it is a part of, cut where the segment ends.
      const int64_t whole_begin = segment.begin + in_segment / kWhole * kWhole,
                    whole_end = std::min(whole_begin + kWhole, segment.end);
      EXPECT_EQ(run.before, run.begin - whole_begin);
      EXPECT_EQ(run.after, whole_end - run.begin - run.length);
      const auto [begin, end] = sequence_range(offsets, ranges, segment.sequence);
      EXPECT_EQ(run.starts, first + run.begin == begin ? segment.sequence : -1);
      EXPECT_EQ(run.ends, first + run.begin + run.length == end ? segment.sequence : -1);
      in_segment += run.length;
      if (run.begin + run.length == segment.end) ++next_segment, in_segment = 0;
    }
    EXPECT_EQ(next_segment, static_cast<int64_t>(partition.segments.size())) << "tokens without a run";
  });
}

TEST(DeviceSegments, SayWhatComesInAndGoesOut) {
  for_all([](const std::vector<int64_t> &offsets, const TokenRanges &ranges, int32_t rank,
             const TokenPartition &partition) {
    const int64_t first = ranges.begin[static_cast<size_t>(rank)], tokens = ranges.tokens(rank);
    const std::vector<gpu::Segment> segments = make_segments(partition, kRun);
    ASSERT_EQ(segments.size(), partition.segments.size());
    int64_t runs = 0;
    for (size_t i = 0; i < segments.size(); ++i) {
      SCOPED_TRACE("segment " + std::to_string(i));
      const gpu::Segment &to = segments[i];
      const Segment &from = partition.segments[i];
      EXPECT_EQ(to.path, from.path);
      EXPECT_EQ(to.sequence, from.sequence);
      EXPECT_EQ(to.first_run, runs);
      EXPECT_EQ(to.num_runs, (from.end - from.begin + kRun - 1) / kRun);
      runs += to.num_runs;
      const auto [begin, end] = sequence_range(offsets, ranges, from.sequence);
      const bool begins_here = first + from.begin == begin, ends_here = first + from.end == end;
      EXPECT_EQ(to.begins[0], begins_here);
      EXPECT_EQ(to.begins[1], ends_here);
      // A row's first segment takes the state from the left when its sequence began on an earlier rank; its last
      // leaves one to the right. In backward the same from the other end.
      const bool leftmost = from.begin == 0, rightmost = from.end == tokens;
      EXPECT_EQ(to.consumes[0], leftmost && !begins_here);
      EXPECT_EQ(to.consumes[1], rightmost && !ends_here);
      EXPECT_EQ(to.produces[0], rightmost);
      EXPECT_EQ(to.produces[1], leftmost);
      // What leaves does not depend on what comes in where its sequence begins here, or in backward ends.
      const auto of_row = [&](const Segment &s) { return s.row == from.row; };
      const auto last = std::find_if(partition.segments.rbegin(), partition.segments.rend(), of_row);
      const auto front = std::find_if(partition.segments.begin(), partition.segments.end(), of_row);
      EXPECT_EQ(to.resets[0], last->starts_here);
      EXPECT_EQ(to.resets[1], front->ends_here);
    }
  });
}

}  // namespace
}  // namespace lasp
