// LASP_OWN_ZIGZAG: rank r has parts r and 2W-1-r of the tokens. Every schedule and decay against the oracle, packed
// and not, and what is sent by formula.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>

#include "support/head_scatter.h"
#include "support/kinds.h"
#include "support/pass_rank.h"

namespace lasp_test {
namespace {

constexpr int64_t kMost = 5;

Case base_case(int32_t decay, bool delta, int32_t nranks, int64_t part) {
  Case c;
  c.name = "zigzag_" + std::to_string(decay) + (delta ? "_delta" : "");
  c.decay = decay, c.delta = delta;
  c.tokens = 2 * nranks * part, c.heads_q = 4, c.heads_k = c.heads_v = 2, c.head_dim_k = c.head_dim_v = 8;
  c.chunk = 16, c.mean_decay = 0.05, c.ownership = LASP_OWN_ZIGZAG;
  return c;
}

// All passes through one plan of each rank.
void run_all(const Case &c, int32_t nranks, const std::vector<Pass> &passes, int32_t schedule, int32_t threads = 1,
             int32_t verify = 0) {
  std::vector<lasp_comm *> comms(static_cast<size_t>(nranks));
  ASSERT_EQ(lasp_comm_create_threads(nranks, comms.data()), LASP_OK);
  std::vector<std::unique_ptr<PassRank>> ranks(static_cast<size_t>(nranks));
  std::vector<TensorSet> wholes(passes.size());
  PassRank::Options options;
  options.schedule = schedule, options.threads = threads, options.verify = verify;
  options.max_sequences = passes[0].c.cu_seqlens.empty() ? 0 : kMost;
  std::vector<std::vector<std::array<std::vector<float>, kTensors>>> outs(static_cast<size_t>(nranks));
  on_threads(nranks, [&](int32_t r) {
    const auto i = static_cast<size_t>(r);
    ranks[i] = std::make_unique<PassRank>(c, comms[i], options);
    for (size_t p = 0; p < passes.size(); ++p) {
      ASSERT_EQ(ranks[i]->run(passes[p], p % 2 == 0), LASP_OK) << lasp_last_error();
      EXPECT_EQ(ranks[i]->complaints(), "");  // the others wait for this rank: it goes on
      EXPECT_TRUE(ranks[i]->within_bounds());
      outs[i].push_back(ranks[i]->out);
    }
  });
  for (size_t p = 0; p < passes.size() && !testing::Test::HasFailure(); ++p) {
    for (auto &rank : ranks) {
      rank->out = outs[static_cast<size_t>(rank->rank)].at(p);
      put_together(passes[p], *rank, wholes[p]);
    }
    EXPECT_EQ(compare_pass(passes[p], wholes[p]), "")
        << c.name << ", " << nranks << " ranks, " << schedule_name(schedule) << ", pass " << p << ", packed at "
        << testing::PrintToString(passes[p].c.cu_seqlens);
  }
}

TEST(Zigzag, EveryScheduleAndDecay) {
  if (on_cuda()) GTEST_SKIP() << "buffers of this test are the host's; the case table has zigzags for a GPU";
  for (const int32_t nranks : quick_run() ? std::vector<int32_t>{3} : std::vector<int32_t>{1, 2, 3, 4, 5})
    for (const int32_t decay : kDecays)
      for (const bool delta : {false, true})
        for (const int32_t schedule : kSchedules) {
          Case c = base_case(decay, delta, nranks, 21);
          c.batch = 2;
          if (schedule % 2 == 0) c.cache = LASP_CACHE_INCOMING;
          c.pieces = schedule == LASP_SCHEDULE_ALL_SCAN ? 3 : 0;
          run_all(c, nranks, {make_pass(c, {}, 0)}, schedule, 1 + decay % 2, schedule % 3 == 0);
        }
}

TEST(Zigzag, PackedAnywhere) {
  if (on_cuda()) GTEST_SKIP() << "buffers of this test are the host's; the case table has zigzags for a GPU";
  std::mt19937 random(5);
  const auto below = [&](int64_t n) { return static_cast<int64_t>(random() % static_cast<uint64_t>(n)); };
  for (const int32_t nranks : quick_run() ? std::vector<int32_t>{1, 3} : std::vector<int32_t>{1, 2, 3, 4})
    for (const int32_t decay : kDecays)
      for (const bool delta : {false, true}) {
        const Case c = base_case(decay, delta, nranks, 9);
        std::vector<Pass> passes;
        for (int i = 0; i < (quick_run() ? 3 : 12); ++i) {
          const int64_t end = below(2) == 0 ? c.tokens : below(c.tokens + 1);
          std::vector<int64_t> offsets = {0, end};
          for (int64_t n = below(kMost); n > 0; --n)
            offsets.push_back(below(3) == 0 ? 9 * below(end / 9 + 1) : below(end + 1));  // at edges of ranks too
          std::sort(offsets.begin(), offsets.end());
          passes.push_back(make_pass(c, offsets, 0));
        }
        run_all(c, nranks, passes, kSchedules[static_cast<size_t>(nranks + decay) % std::size(kSchedules)]);
      }
}

// Each sequence by itself: lengths of any multiple of 2W, none, and padding.
TEST(Zigzag, OfEachSequence) {
  if (on_cuda()) GTEST_SKIP() << "buffers of this test are the host's; the case table has zigzags for a GPU";
  std::mt19937 random(7);
  const auto below = [&](int64_t n) { return static_cast<int64_t>(random() % static_cast<uint64_t>(n)); };
  for (const int32_t nranks : quick_run() ? std::vector<int32_t>{1, 3} : std::vector<int32_t>{1, 2, 3, 4})
    for (const int32_t decay : kDecays)
      for (const bool delta : {false, true})
        for (const int32_t schedule : kSchedules) {
          Case c = base_case(decay, delta, nranks, 21);
          c.ownership = LASP_OWN_ZIGZAG_EACH;
          if (schedule % 2 == 0) c.cache = LASP_CACHE_INCOMING;
          c.pieces = schedule == LASP_SCHEDULE_ALL_SCAN ? 3 : 0;
          std::vector<Pass> passes;
          for (int i = 0; i < (quick_run() ? 2 : 3); ++i) {
            std::vector<int64_t> offsets = {0};
            for (int64_t n = below(kMost + 1); n > 0; --n)
              offsets.push_back(std::min(c.tokens, offsets.back() + 2 * nranks * below(10)));
            passes.push_back(make_pass(c, offsets, 0));
          }
          run_all(c, nranks, passes, schedule, 1 + decay % 2, schedule % 3 == 0);
        }
}

TEST(Zigzag, RanksWithoutTokens) {
  if (on_cuda()) GTEST_SKIP() << "buffers of this test are the host's; the case table has zigzags for a GPU";
  for (const bool delta : {false, true}) {
    const Case c = base_case(LASP_DECAY_SCALAR, delta, 3, 0);
    for (const int32_t schedule : kSchedules) run_all(c, 3, {make_pass(c, {}, 0)}, schedule);
  }
}

// What a run's map has beside its state, where that travels: a number for each head, for each channel, or a matrix.
uint64_t transition_bytes(const Case &c) {
  const auto heads = static_cast<uint64_t>(c.heads()), width = static_cast<uint64_t>(c.head_dim_k);
  if (c.delta) return heads * width * width * 4;
  if (c.decay == LASP_DECAY_CHANNEL) return heads * width * 4;
  return c.decay == LASP_DECAY_SCALAR ? heads * 4 : 0;
}

// Of 2W - 1 runs, for the two in the middle are one. Messages between two runs of one rank are none.
void expect_messages_of_runs(const Case &c, int32_t schedule, int32_t nranks) {
  uint64_t messages = 0, bytes = 0, expected = 0, expected_bytes = 0;
  const int32_t positions = 2 * nranks - 1;
  const auto rank_of = [&](int32_t p) { return std::min(p, 2 * nranks - 2 - p); };
  const auto state = static_cast<uint64_t>(c.heads() * c.head_dim_k * c.head_dim_v * 4);
  const uint64_t factors = transition_bytes(c);
  const auto sends = [&](int32_t from, int32_t to, uint64_t size) {
    if (to < positions && rank_of(from) != rank_of(to)) ++expected, expected_bytes += size;
  };
  for (int32_t p = 0; p < positions; ++p) {
    if (schedule == LASP_SCHEDULE_ALL_GATHER)
      for (int32_t to = p + 1; to < positions; ++to) sends(p, to, state + factors);
    if (schedule == LASP_SCHEDULE_DOUBLING)
      for (int32_t distance = 1; distance < positions; distance *= 2) sends(p, p + distance, state + factors);
    if (schedule == LASP_SCHEDULE_HEAD_SCATTER && p == 0)
      head_scatter_messages(
          positions, c.heads(), factors == 0, [&](int32_t from, int32_t to, int64_t share, bool transition) {
            const auto heads = static_cast<uint64_t>(c.heads());
            sends(from, to, (transition ? factors : state) / heads * static_cast<uint64_t>(share));
          });
    if (schedule == LASP_SCHEDULE_RING || schedule == LASP_SCHEDULE_ALL_SCAN) sends(p, p + 1, state);
  }
  for (int32_t rank = 0; rank < nranks; ++rank) {
    RunOptions options;
    options.schedule = schedule;
    lasp_problem p = problem_of(c, rank, nranks, options);
    p.pieces = 1;
    lasp_placement at = LASP_PLACEMENT_INIT;
    at.rank = rank, at.nranks = nranks;
    lasp_plan_info info = LASP_PLAN_INFO_INIT;
    ASSERT_EQ(lasp_problem_get_info(&p, &at, &info), LASP_OK) << lasp_last_error();
    messages += info.forward_messages_sent, bytes += info.forward_bytes_sent;
    EXPECT_EQ(info.total_tokens, c.tokens);
    EXPECT_EQ(info.token_begin, rank * 16);
  }
  EXPECT_EQ(messages, expected);
  EXPECT_EQ(bytes, expected_bytes);
}

TEST(Zigzag, SendsWhatTheRunsSend) {
  for (const int32_t decay : kDecays)
    for (const bool delta : {false, true})
      for (const int32_t schedule : kSchedules)
        for (const int32_t nranks : {2, 3, 5}) {
          Case c = base_case(decay, delta, nranks, 16);
          c.head_dim_v = 24;
          SCOPED_TRACE(testing::Message() << c.name << ", " << schedule_name(schedule) << " " << nranks);
          expect_messages_of_runs(c, schedule, nranks);
        }
}

}  // namespace
}  // namespace lasp_test
