// The traps that implementations of sequence parallelism fell into, each by its name. The cases are the table's; a
// failure here says which trap it is.
#include <gtest/gtest.h>

#include <string_view>

#include <algorithm>
#include <cmath>

#include "support/group_params.h"
#include "support/guarded_buffer.h"
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
      const lasp_layout one = strides_of(square, Layout::mixed, static_cast<Operand>(a)),
                        other = strides_of(square, Layout::mixed, static_cast<Operand>(b));
      EXPECT_TRUE(one.batch != other.batch && one.token != other.token && one.head != other.head) << a << " " << b;
    }
  }
  trap({"mixed", "mixed_sparse", "mixed_square"});
  run_everywhere(case_named("bidirectional_mixed"));
}
TEST(Traps, OneElementForMany) { trap({"expanded", "expanded_bfloat16"}); }
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
  trap({"broadcast", "sparse_ranks_reversed"});
  run_everywhere(case_named("bidirectional_ragged"));
}
TEST(Traps, StatesAbsent) { trap({"no_states", "packed_across_all"}); }

// A state read on a rank that does not own it would bring the NaN that RankRun puts there; a wrong owner would
// leave the true one's unwritten. This is the case where most ranks own nothing.
TEST(Traps, OneSequenceAcrossAllRanksOwnedByItsEnds) { trap({"packed_across_all", "packed_sparse"}); }

// Infinities in one sequence: in its states, in the value of its first token and the gradient of its last.
CaseData with_infinities(const Case &c, CaseData data, size_t sequence) {
  const int64_t state = c.heads() * c.head_dim_k * c.head_dim_v, first = c.cu_seqlens[sequence];
  const int64_t last = c.cu_seqlens[sequence + 1] - 1, v = c.heads_v * c.head_dim_v, o = c.heads() * c.head_dim_v;
  std::fill_n(data.v.begin() + first * v, v, INFINITY);
  std::fill_n(data.d_o.begin() + last * o, o, -INFINITY);
  for (std::vector<float> *states : {&data.initial_state, &data.d_final_state}) {
    if (!states->empty()) std::fill_n(states->begin() + static_cast<int64_t>(sequence) * state, state, INFINITY);
  }
  return data;
}

// The elements that are of other sequences; of a gradient that sums over all there are none.
std::vector<double> outside(const Case &c, size_t sequence, TensorId id, const std::vector<double> &tensor) {
  if (id == kDDecay && c.decay == LASP_DECAY_HEAD) return {};
  const bool states = id == kFinalState || id == kDInitialState;
  const auto rows = states ? static_cast<size_t>(c.num_sequences()) : static_cast<size_t>(c.tokens);
  const size_t width = tensor.size() / rows,
               begin = states ? sequence : static_cast<size_t>(c.cu_seqlens[sequence]),
               end = states ? sequence + 1 : static_cast<size_t>(c.cu_seqlens[sequence + 1]);
  std::vector<double> rest;
  for (size_t i = 0; i < tensor.size(); ++i) {
    if (i / width < begin || i / width >= end) rest.push_back(tensor[i]);
  }
  return rest;
}

// A factor of zero at a boundary is no factor: zero times infinity would be a NaN in the next sequence.
TEST(Traps, InfinitiesOfOneSequenceDoNotPassItsEnds) {
  for (const char *name : {"none_packed_whole_ranks", "head_packed_whole_ranks", "scalar_packed_at_rank_edges",
                           "channel_packed_whole_ranks", "delta_none_packed_whole_ranks",
                           "delta_scalar_packed_at_rank_edges", "delta_channel_packed_whole_ranks"}) {
    const Case &c = case_named(name);
    for (size_t n = 0; n + 1 < c.cu_seqlens.size(); n += 2) {
      if (c.cu_seqlens[n] == c.cu_seqlens[n + 1]) continue;
      const CaseData infinite = with_infinities(c, cached_data(c), n);
      for (const int32_t nranks : quick_run() ? std::vector<int32_t>{1, 4} : std::vector<int32_t>{1, 3, 4, 8}) {
        for (const int32_t schedule : all_schedules()) {
          RunOptions options;
          options.schedule = schedule;
          const Outputs usual = run_case(c, cached_data(c), Transport::threads, nranks, options);
          const Outputs out = run_case(c, infinite, Transport::threads, nranks, options);
          ASSERT_EQ(usual.complaints + out.complaints, "");
          for (int id = 0; id < kTensors; ++id) {
            EXPECT_EQ(outside(c, n, static_cast<TensorId>(id), out.tensors[id]),
                      outside(c, n, static_cast<TensorId>(id), usual.tensors[id]))
                << name << " " << kTensorNames[id] << ", infinities in sequence " << n << ", " << nranks
                << " ranks, " << schedule_name(schedule);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace lasp_test
