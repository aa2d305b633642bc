// The traps that implementations of sequence parallelism fell into, each by its name. The cases are the table's; a
// failure here says which trap it is.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "support/group_params.h"
#include "support/measure.h"
#include "support/strided_tensor.h"

namespace lasp_test {
namespace {

// Cases runs these on the other groups too.
std::vector<GroupSize> trap_groups() {
  if (quick_run()) return {{Transport::threads, 3}};
  return {{Transport::threads, 3}, {Transport::threads, 8}};
}

void run_everywhere(const Case &c) {
  for (const GroupSize &group : trap_groups()) {
    for (const int32_t schedule : all_schedules()) {
      RunOptions options;
      options.schedule = schedule;
      const Outputs out = run_case(c, cached_data(c), group.transport, group.nranks, options);
      EXPECT_EQ(out.complaints, "") << c.name << " " << group_name(group, schedule);
      if (!out.complaints.empty()) continue;
      EXPECT_EQ(compare(c, cached_expected(c), out), "") << c.name << " " << group_name(group, schedule);
    }
  }
}

// The named cases of every decay kind that has them.
void trap(const std::vector<std::string> &names) {
  for (const char *decay : {"none_", "head_", "scalar_", "channel_"}) {
    for (const std::string &name : names) {
      if (name.rfind("decay_", 0) != 0 || decay != std::string("none_")) run_everywhere(case_named(decay + name));
    }
  }
}

TEST(Traps, FewerTokensThanRanks) { trap({"three_tokens", "one_token"}); }
TEST(Traps, NoTokensAtAll) {
  trap({"no_tokens", "packed_all_empty"});
  run_everywhere(case_named("bidirectional_no_tokens"));
}
TEST(Traps, RanksWithZeroOneAndSeventeenTokens) {
  const std::vector<int64_t> tokens = tokens_of_ranks(case_named("none_sparse_ranks"), 8);
  ASSERT_EQ(tokens, (std::vector<int64_t>{0, 1, 17, 0, 1, 17, 0, 84}));
  trap({"sparse_ranks", "sparse_ranks_reversed", "one_rank_has_all"});
}
TEST(Traps, Length127) { trap({"length_127"}); }
TEST(Traps, Length128) { trap({"length_128"}); }
TEST(Traps, Length129) { trap({"length_129"}); }
TEST(Traps, Length255) { trap({"length_255"}); }
TEST(Traps, Length257) { trap({"length_257"}); }
TEST(Traps, BoundaryAtRankEdgeWithAnEmptySequenceThere) {
  const Case &c = case_named("none_packed_at_rank_edges");
  for (const int32_t nranks : {2, 3, 4, 8}) {  // the case is what its name says
    int64_t edge = 0;
    int empty = 0;
    for (const int64_t tokens : tokens_of_ranks(c, nranks)) {
      edge += tokens;
      const int64_t at_edge = std::count(c.cu_seqlens.begin(), c.cu_seqlens.end(), edge);
      ASSERT_GE(at_edge, 1) << "rank edge " << edge;
      empty += at_edge > 1 ? 1 : 0;
    }
    ASSERT_GE(empty, 1);
  }
  trap({"packed_at_rank_edges"});
}
TEST(Traps, SequenceFromOrToARankEdgeOverAWholeRank) {
  trap({"packed_from_rank_edge", "packed_to_rank_edge", "packed_whole_ranks"});
}
TEST(Traps, ThreeBatchRowsOnUnevenRanks) { trap({"uneven_batch"}); }
TEST(Traps, HeadMajorLayout) { trap({"head_major", "head_major_sparse"}); }
TEST(Traps, PackedQkvLayout) { trap({"packed_qkv", "packed_qkv_sparse"}); }
TEST(Traps, PaddedStrides) { trap({"padded", "padded_sparse"}); }
// The case is what its name says: of two tensors with the same extents each stride differs.
TEST(Traps, StridesOfAnotherTensor) {
  const Extent square = {2, 75, 2, 16};
  for (int32_t a = 0; a < kOperands; ++a) {
    for (int32_t b = 0; b < a; ++b) {
      const lasp_strides one = strides_of(square, Layout::mixed, static_cast<Operand>(a)),
                         other = strides_of(square, Layout::mixed, static_cast<Operand>(b));
      EXPECT_TRUE(one.batch != other.batch && one.token != other.token && one.head != other.head) << a << " " << b;
    }
  }
  trap({"mixed", "mixed_sparse", "mixed_square"});
  run_everywhere(case_named("bidirectional_mixed"));
}
TEST(Traps, LogDecayMinus60PerToken) { trap({"decay_minus_60"}); }
TEST(Traps, LogDecayMinus1e6th) { trap({"decay_minus_1e_6"}); }
TEST(Traps, KeyAndValueWidthsDiffer) { trap({"batch", "width_24x64", "width_64x24"}); }
TEST(Traps, Width8And256) { trap({"width_8x256"}); }
TEST(Traps, Width24And64) { trap({"width_24x64"}); }
TEST(Traps, Width128And192) { trap({"width_128x192"}); }
TEST(Traps, Width192And8) { trap({"width_192x8"}); }
TEST(Traps, Width256And128) { trap({"width_256x128"}); }
TEST(Traps, GroupedQueriesAndValues) { trap({"grouped_queries", "grouped_values", "one_key_head"}); }
TEST(Traps, FinalStateBroadcast) {
  trap({"broadcast", "sparse_ranks_reversed", "packed_ragged"});
  run_everywhere(case_named("bidirectional_packed_ragged"));
}
TEST(Traps, StatesAbsent) { trap({"no_states", "packed_across_all"}); }

// A state read on a rank that does not own it would bring the NaN that RankRun puts there; a wrong owner would
// leave the true one's unwritten. This is the case where most ranks own nothing.
TEST(Traps, OneSequenceAcrossAllRanksOwnedByItsEnds) { trap({"packed_across_all", "packed_sparse"}); }

}  // namespace
}  // namespace lasp_test
