// The traps that implementations of sequence parallelism fell into, each by its name. The cases are the table's; a
// failure here says which trap it is.
#include <gtest/gtest.h>

#include <string_view>

#include <algorithm>
#include <cmath>
#include <cstring>

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
    for (const int32_t schedule : schedules_of(c)) {
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
        for (const int32_t schedule : schedules_of(c)) {
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

// Each input by itself. A per-head decay is every sequence's.
struct Input {
  const char *name;
  std::vector<float> CaseData::*tensor;
  bool of_states;
};
constexpr Input kInputs[] = {{"q", &CaseData::q, false},
                             {"k", &CaseData::k, false},
                             {"v", &CaseData::v, false},
                             {"decay", &CaseData::g, false},
                             {"beta", &CaseData::beta, false},
                             {"d_o", &CaseData::d_o, false},
                             {"initial_state", &CaseData::initial_state, true},
                             {"d_final_state", &CaseData::d_final_state, true}};

// NaN wherever the input has something of the sequence.
CaseData with_nan(const Case &c, CaseData data, const Input &input, size_t sequence) {
  std::vector<float> &x = data.*input.tensor;
  const size_t rows = static_cast<size_t>(input.of_states ? c.num_sequences() : c.tokens), width = x.size() / rows;
  const size_t begin = input.of_states ? sequence : static_cast<size_t>(c.cu_seqlens[sequence]);
  const size_t end = input.of_states ? sequence + 1 : static_cast<size_t>(c.cu_seqlens[sequence + 1]);
  std::fill(x.begin() + static_cast<ptrdiff_t>(begin * width), x.begin() + static_cast<ptrdiff_t>(end * width),
            NAN);
  return data;
}

bool has_nan(const TensorSet &tensors) {
  return std::any_of(tensors.begin(), tensors.end(), [](const std::vector<double> &tensor) {
    return std::any_of(tensor.begin(), tensor.end(), [](double x) { return std::isnan(x); });
  });
}

void expect_nan_stays(const Case &c, const CaseData &data, int32_t nranks, int32_t schedule) {
  RunOptions options;
  options.schedule = schedule;
  const Outputs usual = run_case(c, data, Transport::threads, nranks, options);
  ASSERT_EQ(usual.complaints, "");
  ASSERT_FALSE(has_nan(usual.tensors));
  for (size_t n = 0; n + 1 < c.cu_seqlens.size(); ++n) {
    if (c.cu_seqlens[n] == c.cu_seqlens[n + 1]) continue;
    for (const Input &input : kInputs) {
      if ((data.*input.tensor).empty() || (&input == &kInputs[3] && c.decay == LASP_DECAY_HEAD)) continue;
      SCOPED_TRACE(testing::Message() << c.name << ", NaN in " << input.name << " of sequence " << n << ", "
                                      << nranks << " ranks, " << schedule_name(schedule));
      const Outputs out = run_case(c, with_nan(c, data, input, n), Transport::threads, nranks, options);
      ASSERT_EQ(out.complaints, "");
      EXPECT_TRUE(has_nan(out.tensors)) << "nothing came of it";
      for (int id = 0; id < kTensors; ++id) {
        const std::vector<double> as_usual = outside(c, n, static_cast<TensorId>(id), usual.tensors[id]);
        const std::vector<double> rest = outside(c, n, static_cast<TensorId>(id), out.tensors[id]);
        ASSERT_EQ(rest.size(), as_usual.size());
        EXPECT_TRUE(rest.empty() || std::memcmp(rest.data(), as_usual.data(), 8 * rest.size()) == 0)
            << kTensorNames[id];
      }
    }
  }
}

void expect_nan_stays_everywhere(const Case &c, const std::vector<int32_t> &schedules) {
  const CaseData data = make_data(c);
  expect_nan_stays(c, data, 1, LASP_SCHEDULE_AUTO);
  for (const int32_t schedule : schedules) expect_nan_stays(c, data, 4, schedule);
}

// Sequences that end and begin within a chunk. The second of four ranks gets a state of one and hands on another's,
// which its map forgets.
Case nan_case(int32_t decay, bool delta) {
  Case c;
  c.name = "nan_" + std::to_string(decay) + (delta ? "_delta" : "");
  c.decay = decay, c.delta = delta, c.chunk = 16;
  c.tokens = 120, c.cu_seqlens = {0, 5, 45, 45, 100, 120};
  return c;
}

TEST(Traps, NanOfOneSequenceDoesNotPassItsEnds) {
  for (const int32_t decay : kDecays)
    for (const bool delta : {false, true})
      expect_nan_stays_everywhere(nan_case(decay, delta), {std::begin(kSchedules), std::end(kSchedules)});
}

// As a GPU's tensor cores take it, whose chunks of 64 tokens and tiles reach over a sequence's end in memory.
TEST(Traps, NanOfOneSequenceDoesNotPassItsEndsOnTensorCores) {
  for (const int32_t decay : kDecays)
    for (const bool delta : {false, true}) {
      if (quick_run() && (decay == LASP_DECAY_HEAD || decay == LASP_DECAY_SCALAR)) continue;
      Case c = nan_case(decay, delta);
      c.name += "_wide", c.chunk = 0;
      c.tokens = 160, c.cu_seqlens = {0, 60, 60, 150};
      c.head_dim_k = 128, c.head_dim_v = decay == LASP_DECAY_SCALAR ? 64 : 128;
      c.heads_q = c.heads_k = c.heads_v = 1, c.dtype = LASP_BFLOAT16, c.aligned = true;
      expect_nan_stays_everywhere(c, {LASP_SCHEDULE_RING, LASP_SCHEDULE_DOUBLING});
    }
}

}  // namespace
}  // namespace lasp_test
