// The delta rule where it is more than a row of the case table: long sequences, cuts and lengths that others test,
// what beta = 0 and 1 mean exactly, and what travels between ranks.
#include <gtest/gtest.h>

#include <algorithm>
#include <ostream>

#include "support/group_params.h"
#include "support/guarded_buffer.h"
#include "support/head_scatter.h"
#include "support/measure.h"

namespace lasp_test {
namespace {

Case delta_case(const std::string &name, int32_t decay) {
  Case c;
  c.name = "delta_" + name;
  c.delta = true, c.decay = decay;
  c.heads_q = c.heads_k = c.heads_v = 1;
  return c;
}

// The promise of docs/reference/delta-rule.md for float32 tensors, keys of length 1 and beta of at most 1. A token
// takes (I - beta k k^T) diag(decay) of the state, which is never longer than 1: what one rounding leaves is never
// made larger. Per chunk of C tokens there are, with u = 2^-24, float32 sums of random sign over K, V and C, of the
// state before it (rounded once, u), of what is missing (T' times it) and of what is written: u sqrt((2 K + V + 3
// C) / 6), which at K, V, C of at most 128 is 11 u. T' is found in float64 from scores that were rounded once;
// where keys are alike (correlation r) its rows sum to 1 + r in size, and E is by that much more wrong than v:
// twice. From chunk to chunk the state is float64, so that errors of n chunks, each erased at the pace at which the
// state is, are at most those of the chunks that it still remembers. 22 u and the decays' 12 u (measure.cpp) are 34
// u, 2e-6; half as much again is for outputs that are shorter than what they are a sum of, since a state is read
// back by a key that was just erased. The gradients of beta and of the decay are products of two such results of
// which part cancels. Where tensors have 16 bits the rounding of results, or of a product's operands on tensor
// cores, is beyond all that (measure.cpp).
double bound(const Case &c, int tensor, bool tensor_cores) {
  const double float32 = tensor == kDDecay || tensor == kDBeta ? 1e-5 : 3e-6;
  return std::max(float32, error_bound(c, static_cast<TensorId>(tensor), tensor_cores));
}

void expect_promise(const Case &c, const CaseData &data, const Expected &expected, int32_t nranks,
                    int32_t schedule) {
  RunOptions options;
  options.schedule = schedule;
  const Outputs out = run_case(c, data, Transport::threads, nranks, options);
  ASSERT_EQ(out.complaints, "") << c.name;
  for (int id = 0; id < kTensors; ++id) {
    const double size = id == kDDecay ? expected.d_decay_size : 0.0;
    EXPECT_LE(relative_error(expected.tensors[id], out.tensors[id], size), bound(c, id, out.tensor_cores))
        << c.name << " " << kTensorNames[id] << ", " << nranks << " ranks, " << schedule_name(schedule);
  }
}

struct Long {
  const char *name;
  int32_t decay;
  double mean_decay, key_correlation;
};
void PrintTo(const Long &x, std::ostream *out) { *out << x.name; }

class DeltaLong : public testing::TestWithParam<Long> {};

TEST_P(DeltaLong, KeepsThePromise) {
  Case c = delta_case(GetParam().name, GetParam().decay);
  c.tokens = quick_run() ? 20'000 : 100'000;
  c.head_dim_k = 16, c.head_dim_v = 8;
  c.mean_decay = GetParam().mean_decay, c.key_correlation = GetParam().key_correlation;
  const CaseData data = make_data(c);
  const Expected expected = expected_of(c, data);
  for (const int32_t nranks : {1, 5}) {
    c.cache = nranks == 1 ? LASP_CACHE_CHUNKS : LASP_CACHE_INCOMING;
    expect_promise(c, data, expected, nranks, LASP_SCHEDULE_DOUBLING);
  }
}

INSTANTIATE_TEST_SUITE_P(Promise, DeltaLong,
                         testing::Values(Long{"none", LASP_DECAY_NONE, 0, 0},
                                         Long{"none_alike", LASP_DECAY_NONE, 0, 0.9},
                                         Long{"head", LASP_DECAY_HEAD, 0.2, 0},
                                         Long{"scalar_weak", LASP_DECAY_SCALAR, 1e-6, 0.5},
                                         Long{"scalar_alike", LASP_DECAY_SCALAR, 0.01, 0.9},
                                         Long{"scalar_strong", LASP_DECAY_SCALAR, 12, 0},
                                         Long{"channel_weak", LASP_DECAY_CHANNEL, 1e-6, 0.9},
                                         Long{"channel", LASP_DECAY_CHANNEL, 0.1, 0.5}),
                         [](const auto &test) { return std::string(test.param.name); });

// A length and a cut over three ranks that fla tests with its context parallelism.
TEST(Delta, TenThousandTokensOverThreeRanks) {
  for (const int32_t decay : {LASP_DECAY_SCALAR, LASP_DECAY_CHANNEL}) {
    Case c = delta_case("three_ranks", decay);
    c.tokens = 10240, c.head_dim_k = c.head_dim_v = quick_run() ? 8 : 32;
    c.split = Split::free, c.cuts = {3000.0 / 10240, 7000.0 / 10240};
    ASSERT_EQ(tokens_of_ranks(c, 3), (std::vector<int64_t>{3000, 4000, 3240}));
    const CaseData data = make_data(c);
    const Expected expected = expected_of(c, data);
    for (const int32_t schedule : all_schedules()) expect_promise(c, data, expected, 3, schedule);
  }
}

// The same as tensor cores take it, gates in 16 bits and half of them 0; long on a CPU for the oracle's sake.
struct WideShape {
  const char *name;
  int32_t decay, dim_k, dim_v;
};
// As its name, not as its bytes, between which there are gaps.
void PrintTo(const WideShape &shape, std::ostream *to) { *to << shape.name; }
class DeltaWide : public testing::TestWithParam<WideShape> {};

TEST_P(DeltaWide, TenThousandTokensOverThreeRanks) {
  Case c = delta_case("three_ranks_wide", GetParam().decay);
  c.tokens = 10240, c.head_dim_k = GetParam().dim_k, c.head_dim_v = GetParam().dim_v, c.aligned = true;
  c.dtype = c.decay_dtype = c.beta_dtype = LASP_BFLOAT16, c.open_gates = 0.5;
  c.split = Split::free, c.cuts = {3000.0 / 10240, 7000.0 / 10240};
  const CaseData data = make_data(c);
  const Expected expected = expected_of(c, data);
  for (const int32_t schedule : all_schedules()) expect_promise(c, data, expected, 3, schedule);
  // With either cache, and outputs found again from it, to the bit.
  for (const int32_t cache : {LASP_CACHE_INCOMING, LASP_CACHE_CHUNKS}) {
    c.cache = cache;
    RunOptions options;
    options.recompute = true;
    const Outputs out = run_case(c, data, Transport::threads, 3, options);
    EXPECT_EQ(out.complaints, "");
    EXPECT_EQ(compare(c, expected, out), "");
  }
}

INSTANTIATE_TEST_SUITE_P(Promise, DeltaWide,
                         testing::Values(WideShape{"scalar", LASP_DECAY_SCALAR, 128, 128},
                                         WideShape{"channel", LASP_DECAY_CHANNEL, 128, 128},
                                         WideShape{"none_of_192_columns", LASP_DECAY_NONE, 96, 192}),
                         [](const auto &test) { return test.param.name; });

// More threads than heads: the columns of a state are cut for them (K of 48 in two parts, V of 64 in eight).
TEST(Delta, ColumnsOfAStateAreCutForThreads) {
  for (const int32_t decay : {LASP_DECAY_NONE, LASP_DECAY_HEAD, LASP_DECAY_SCALAR, LASP_DECAY_CHANNEL}) {
    Case c = delta_case("threads", decay);
    c.tokens = 500, c.head_dim_k = 48, c.head_dim_v = 64, c.cpu_threads = 4;
    const CaseData data = make_data(c);
    const Expected expected = expected_of(c, data);
    for (const int32_t cache : {LASP_CACHE_INCOMING, LASP_CACHE_CHUNKS}) {
      c.cache = cache;
      expect_promise(c, data, expected, 1, LASP_SCHEDULE_AUTO);
      // Of three ranks, one in the middle has transitions, which only some schedules send.
      for (const int32_t schedule : {LASP_SCHEDULE_RING, LASP_SCHEDULE_DOUBLING})
        expect_promise(c, data, expected, 3, schedule);
    }
  }
}

// Without a write the state is what it was, to the bit, and neither keys nor values matter.
TEST(Delta, BetaOfZeroWritesNothing) {
  Case c = delta_case("no_write", LASP_DECAY_NONE);
  c.tokens = 300, c.heads_q = c.heads_k = c.heads_v = 2, c.constant_beta = 0.0, c.key_correlation = 0.9;
  const CaseData data = make_data(c);
  for (const int32_t nranks : {1, 3, 5}) {
    for (const int32_t schedule : all_schedules()) {
      RunOptions options;
      options.schedule = schedule;
      const Outputs out = run_case(c, data, Transport::threads, nranks, options);
      ASSERT_EQ(out.complaints, "");
      const std::vector<double> initial(data.initial_state.begin(), data.initial_state.end());
      EXPECT_EQ(out.tensors[kFinalState], initial) << nranks << " " << schedule_name(schedule);
      for (const TensorId id : {kDk, kDv})
        EXPECT_EQ(out.tensors[id], std::vector<double>(out.tensors[id].size(), 0.0)) << kTensorNames[id];
    }
  }
}

// One-hot keys, a beta of 1 and whole numbers, whose differences are exact: a row of the state is the value that
// was written to it last, exactly, and reads give it back; what stood there before reaches nothing after.
TEST(Delta, BetaOfOneErasesExactly) {
  Case c = delta_case("erase", LASP_DECAY_NONE);
  c.tokens = 200, c.scale = 1.0f, c.head_dim_k = 8, c.head_dim_v = 16, c.exact = true;
  CaseData data = make_data(c);
  data.beta.assign(data.beta.size(), 1.0f);
  for (int64_t t = 0; t < c.tokens; ++t) {
    for (int64_t i = 0; i < 8; ++i) data.k[t * 8 + i] = data.q[t * 8 + i] = i == t * 5 % 8 ? 1.0f : 0.0f;
  }
  for (const int32_t nranks : {1, 2, 5}) {
    for (const int32_t schedule : all_schedules()) {
      RunOptions options;
      options.schedule = schedule;
      const Outputs out = run_case(c, data, Transport::threads, nranks, options);
      ASSERT_EQ(out.complaints, "");
      EXPECT_EQ(out.tensors[kO], std::vector<double>(data.v.begin(), data.v.end())) << nranks;
      EXPECT_EQ(out.tensors[kDInitialState], std::vector<double>(8 * 16, 0.0)) << nranks;
      for (int64_t t = c.tokens - 8; t < c.tokens; ++t) {
        for (int64_t j = 0; j < 16; ++j) {
          ASSERT_EQ(out.tensors[kFinalState][static_cast<size_t>(t * 5 % 8 * 16 + j)],
                    data.v[static_cast<size_t>(t * 16 + j)]);
        }
      }
    }
  }
}

// Ring and all-scan send states alone, P bytes; the others maps, P + Q with Q for the transitions [B, H, K, K].
TEST(Delta, SendsWhatTheFormulasSay) {
  Case c = delta_case("traffic", LASP_DECAY_SCALAR);
  c.batch = 2, c.tokens = 40, c.heads_q = c.heads_k = c.heads_v = 3, c.head_dim_k = 16, c.head_dim_v = 24;
  const uint64_t state = 4 * 2 * 3 * 16 * 24, map = state + 4 * 2 * 3 * 16 * 16;
  constexpr uint64_t kRanks = 5;
  const uint64_t links = kRanks - 1, pairs = kRanks * (kRanks - 1) / 2, hops = 4 + 3 + 1;
  uint64_t scattered = 0;
  head_scatter_messages(kRanks, 2 * 3, false, [&](int32_t, int32_t, int64_t share, bool transition) {
    scattered += static_cast<uint64_t>(share) * 4 * 16 * (transition ? 16 : 24);
  });
  // As the page on schedules has it, with the shares of the first and the last rank, of one head and of two.
  EXPECT_EQ(scattered, (6 * (2 * kRanks - 4) + 3) * 4 * 16 * 24 + (6 * (kRanks - 3) + 3) * 4 * 16 * 16);
  const std::pair<int32_t, uint64_t> totals[] = {{LASP_SCHEDULE_RING, links * state},
                                                 {LASP_SCHEDULE_ALL_SCAN, links * state},
                                                 {LASP_SCHEDULE_ALL_GATHER, pairs * map},
                                                 {LASP_SCHEDULE_DOUBLING, hops * map},
                                                 {LASP_SCHEDULE_HEAD_SCATTER, scattered}};
  for (const auto &[schedule, bytes] : totals) {
    RunOptions options;
    options.schedule = schedule;
    const Outputs out = run_case(c, make_data(c), Transport::threads, kRanks, options);
    ASSERT_EQ(out.complaints, "");
    uint64_t forward = 0, backward = 0;
    for (const RankResult &rank : out.ranks)
      forward += rank.info.forward_bytes_sent, backward += rank.info.backward_bytes_sent;
    EXPECT_EQ(forward, bytes) << schedule_name(schedule);
    EXPECT_EQ(backward, bytes) << schedule_name(schedule);
    if (on_cuda()) continue;  // whose model counts rounds and compositions besides, as measured on a GPU
    const auto cost = [&](int32_t which) { return out.ranks[0].info.predicted_us[which]; };
    const double latency = 10, transfer = cost(LASP_SCHEDULE_RING) / 4 - latency;  // of a state
    const double whole = transfer * static_cast<double>(map) / static_cast<double>(state);
    EXPECT_GT(transfer, 0.5);
    EXPECT_NEAR(cost(LASP_SCHEDULE_DOUBLING), 3 * (latency + whole), 1e-9);
    EXPECT_NEAR(cost(LASP_SCHEDULE_ALL_GATHER), latency + 4 * whole, 1e-9);
    EXPECT_NEAR(cost(LASP_SCHEDULE_HEAD_SCATTER), 2 * latency + 4 * (transfer + whole) / 5, 1e-9);
  }
}

// States of 2 MiB a rank and transitions of as much, on four ranks.
TEST(Delta, HeadScatterSendsFourMebibytesAtMost) {
  lasp_problem p = LASP_PROBLEM_INIT;
  p.tokens = 64, p.heads_q = p.heads_k = p.heads_v = 32, p.head_dim_k = p.head_dim_v = 128;
  p.write = LASP_WRITE_DELTA, p.schedule = LASP_SCHEDULE_HEAD_SCATTER;
  constexpr uint64_t kMebibytes[] = {3, 4, 4, 1};
  for (int32_t rank = 0; rank < 4; ++rank) {
    lasp_placement at = LASP_PLACEMENT_INIT;
    at.rank = rank, at.nranks = 4;
    lasp_plan_info info = LASP_PLAN_INFO_INIT;
    ASSERT_EQ(lasp_problem_get_info(&p, &at, &info), LASP_OK) << lasp_last_error();
    EXPECT_EQ(info.forward_bytes_sent, kMebibytes[rank] << 20) << "rank " << rank;
    EXPECT_EQ(info.backward_bytes_sent, kMebibytes[3 - rank] << 20) << "rank " << rank;
  }
}

// Only a rank in the middle of a sequence keeps transitions for its backward pass.
TEST(Delta, TheCacheHasTransitionsInTheMiddleAlone) {
  Case c = delta_case("cache", LASP_DECAY_NONE);
  c.tokens = 192, c.head_dim_k = 16, c.head_dim_v = 8, c.chunk = 64;
  const Outputs out = run_case(c, make_data(c), Transport::threads, 3, {});
  ASSERT_EQ(out.complaints, "");
  const uint64_t state = 4 * 16 * 8, square = 4 * 16 * 16;
  for (const size_t rank : {size_t{0}, size_t{1}, size_t{2}}) {
    const lasp_plan_info &info = out.ranks[rank].info;
    EXPECT_EQ(info.state_cache_chunks_bytes, state + (rank == 1 ? square : 0)) << rank;
    EXPECT_EQ(info.state_cache_incoming_bytes, state + (rank == 1 ? square : 0)) << rank;
  }
}

}  // namespace
}  // namespace lasp_test
