// Packing that changes with every pass of one plan: against the oracle, with padding that nobody reads, messages
// that do not depend on it, and ranks that were given different offsets.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>

#include "support/head_scatter.h"
#include "support/kinds.h"
#include "support/pass_rank.h"

namespace lasp_test {
namespace {

constexpr int64_t kMost = 7;

Case base_case(int32_t decay, bool delta) {
  Case c;
  c.name = "packing_" + std::to_string(decay) + (delta ? "_delta" : "");
  c.decay = decay, c.delta = delta;
  c.tokens = 67, c.heads_q = c.heads_k = c.heads_v = 2, c.head_dim_k = c.head_dim_v = 8, c.chunk = 16;
  c.split = Split::ragged;
  return c;
}

// Sequences anywhere, equal offsets too, at most kMost; half of the time padding, and now and then nothing else.
std::vector<int64_t> drawn_offsets(std::mt19937 &random, int64_t tokens) {
  const auto below = [&](int64_t n) { return static_cast<int64_t>(random() % static_cast<uint64_t>(n)); };
  if (below(20) == 0) return {0};
  const int64_t end = below(2) == 0 ? tokens : below(tokens + 1);
  std::vector<int64_t> offsets = {0, end};
  for (int64_t i = below(kMost); i > 0; --i) offsets.push_back(below(4) == 0 ? offsets.back() : below(end + 1));
  std::sort(offsets.begin(), offsets.end());
  return offsets;
}

void run_all(const Case &c, int32_t nranks, int32_t schedule, int packings, uint32_t seed, int32_t threads = 1) {
  std::mt19937 random(seed);
  std::vector<Pass> passes;
  for (int i = 0; i < packings; ++i)
    passes.push_back(make_pass(c, drawn_offsets(random, c.tokens), static_cast<uint64_t>(i % 3)));
  std::vector<lasp_comm *> comms(static_cast<size_t>(nranks));
  ASSERT_EQ(lasp_comm_create_threads(nranks, comms.data()), LASP_OK);
  std::vector<std::vector<std::array<std::vector<float>, kTensors>>> outs(static_cast<size_t>(nranks));
  std::vector<std::unique_ptr<PassRank>> ranks(static_cast<size_t>(nranks));
  PassRank::Options options;
  options.schedule = schedule, options.threads = threads, options.max_sequences = kMost;
  on_threads(nranks, [&](int32_t r) {
    const auto i = static_cast<size_t>(r);
    ranks[i] = std::make_unique<PassRank>(c, comms[i], options);
    for (size_t p = 0; p < passes.size(); ++p) {
      // Ranks may differ in the type of their offsets.
      ASSERT_EQ(ranks[i]->run(passes[p], (p + i) % 2 == 0), LASP_OK) << lasp_last_error();
      EXPECT_EQ(ranks[i]->complaints(), "");  // the others wait for this rank: it goes on
      outs[i].push_back(ranks[i]->out);
      EXPECT_TRUE(ranks[i]->within_bounds());
    }
  });
  for (size_t p = 0; p < passes.size() && !testing::Test::HasFailure(); ++p) {
    SCOPED_TRACE(testing::Message() << c.name << ", " << nranks << " ranks, " << schedule_name(schedule)
                                    << ", packing " << p << ": " << testing::PrintToString(passes[p].c.cu_seqlens));
    TensorSet whole;
    for (auto &rank : ranks) {
      ASSERT_EQ(outs[static_cast<size_t>(rank->rank)].size(), passes.size());
      rank->out = outs[static_cast<size_t>(rank->rank)][p];
      put_together(passes[p], *rank, whole);
    }
    EXPECT_EQ(compare_pass(passes[p], whole), "");
  }
}

bool packs() { return !on_cuda(); }

TEST(Packing, AThousandThroughPlansOfEveryKind) {
  if (!packs()) GTEST_SKIP() << "buffers of this test are the host's; tests/gpu/packing_test.cpp has a GPU's";
  const int each = quick_run() ? 5 : 32;
  uint32_t seed = 1;
  for (const int32_t decay : kDecays)
    for (const bool delta : {false, true})
      for (const int32_t nranks : {1, 2, 3, 4}) {
        Case c = base_case(decay, delta);
        if (seed % 2 == 0) c.cache = LASP_CACHE_INCOMING;
        run_all(c, nranks, kSchedules[seed % std::size(kSchedules)], each, seed, 1 + seed % 3 / 2);
        ++seed;
      }
}

// By every schedule, on ranks with few tokens or none, grouped heads and 16-bit inputs.
TEST(Packing, OnUnevenRanksBySchedules) {
  if (!packs()) GTEST_SKIP() << "buffers of this test are the host's; tests/gpu/packing_test.cpp has a GPU's";
  for (const int32_t schedule : kSchedules)
    for (const int32_t decay : kDecays) {
      Case c = base_case(decay, false);
      c.split = Split::sparse, c.heads_q = 4;
      run_all(c, 5, schedule, quick_run() ? 3 : 12, static_cast<uint32_t>(100 + schedule));
    }
}

// One order of sums over segments, by the two schedules that keep it.
TEST(Packing, WithSegments) {
  if (!packs()) GTEST_SKIP() << "buffers of this test are the host's; tests/gpu/packing_test.cpp has a GPU's";
  for (const int32_t schedule : {LASP_SCHEDULE_RING, LASP_SCHEDULE_ALL_SCAN})
    for (const int32_t decay : kDecays)
      for (const int32_t nranks : {1, 3}) {
        Case c = base_case(decay, false);
        c.segment = 16, c.split = Split::even;
        run_all(c, nranks, schedule, quick_run() ? 3 : 12, static_cast<uint32_t>(200 + nranks));
      }
}

// A packed plan sends what a plan of one sequence sends: where a schedule brings transitions that all ranks could
// work out of a plan of one sequence, those too.
TEST(Packing, MessagesAreThoseOfOneSequence) {
  for (const int32_t decay : kDecays)
    for (const int32_t schedule : kSchedules)
      for (int32_t rank = 0; rank < 4; ++rank) {
        const Case c = base_case(decay, false);
        RunOptions options;
        options.schedule = schedule;
        lasp_problem p = problem_of(c, rank, 4, options);
        lasp_placement at = LASP_PLACEMENT_INIT;
        at.rank = rank, at.nranks = 4;
        lasp_plan_info plain = LASP_PLAN_INFO_INIT, few = plain, many = plain;
        ASSERT_EQ(lasp_problem_get_info(&p, &at, &plain), LASP_OK);
        p.max_sequences = 2;
        ASSERT_EQ(lasp_problem_get_info(&p, &at, &few), LASP_OK);
        p.max_sequences = 500;
        ASSERT_EQ(lasp_problem_get_info(&p, &at, &many), LASP_OK);
        const bool maps = schedule == LASP_SCHEDULE_ALL_GATHER || schedule == LASP_SCHEDULE_DOUBLING;
        const bool known = decay == LASP_DECAY_NONE || decay == LASP_DECAY_HEAD;
        const uint64_t factor = maps && known ? static_cast<uint64_t>(c.heads()) * sizeof(float) : 0;
        // Forward, backward: messages of a transition alone, and their heads.
        uint64_t more[2] = {}, heads[2] = {};
        if (schedule == LASP_SCHEDULE_HEAD_SCATTER && known)
          head_scatter_messages(4, c.heads(), false, [&](int32_t from, int32_t, int64_t share, bool transition) {
            for (const bool backward : {false, true})
              if (transition && from == (backward ? 3 - rank : rank))
                ++more[backward], heads[backward] += static_cast<uint64_t>(share);
          });
        EXPECT_EQ(few.forward_messages_sent, plain.forward_messages_sent + more[0]);
        EXPECT_EQ(few.forward_bytes_sent,
                  plain.forward_bytes_sent + factor * plain.forward_messages_sent + heads[0] * sizeof(float));
        EXPECT_EQ(few.backward_bytes_sent,
                  plain.backward_bytes_sent + factor * plain.backward_messages_sent + heads[1] * sizeof(float));
        EXPECT_EQ(many.forward_bytes_sent, few.forward_bytes_sent);
        EXPECT_EQ(many.backward_messages_sent, few.backward_messages_sent);
        EXPECT_GE(many.workspace_forward_bytes, few.workspace_forward_bytes);
        EXPECT_EQ(many.num_sequences, 500);
      }
}

// Two ranks of two minds. Where messages are verified the later one finds out; else numbers are undefined, and all
// calls return.
TEST(Packing, OffsetsThatDifferBetweenRanks) {
  if (!packs()) GTEST_SKIP() << "buffers of this test are the host's; tests/gpu/packing_test.cpp has a GPU's";
  for (const int32_t schedule : kSchedules)
    for (const int32_t decay : kDecays)
      for (const int32_t verify : {0, 1}) {
        const Case c = base_case(decay, decay % 2 == 1);
        const Pass here = make_pass(c, {0, 10, 50}, 0), there = make_pass(c, {0, 10, 51}, 0);
        lasp_comm *comms[2] = {};
        ASSERT_EQ(lasp_comm_create_threads(2, comms), LASP_OK);
        lasp_status statuses[2] = {};
        std::string sentences[2];
        on_threads(2, [&](int32_t r) {
          PassRank::Options options;
          options.schedule = schedule, options.verify = verify, options.max_sequences = kMost;
          PassRank rank(c, comms[r], options);
          statuses[r] = rank.run(r == 0 ? here : there, false);
          sentences[r] = lasp_last_error();
          EXPECT_TRUE(rank.within_bounds());
        });
        if (verify == 0) {
          EXPECT_EQ(statuses[0], LASP_OK) << sentences[0];
          EXPECT_EQ(statuses[1], LASP_OK) << sentences[1];
        } else {
          EXPECT_EQ(statuses[1], LASP_ERROR_TRANSPORT) << sentences[1];
          EXPECT_NE(sentences[1].find("arrived changed (checksum), or that rank was given another packing"),
                    std::string::npos)
              << sentences[1];
          EXPECT_NE(statuses[0], LASP_OK);  // in its backward pass
        }
      }
}

TEST(Packing, EqualOffsetsOfEitherTypeAreVerified) {
  if (!packs()) GTEST_SKIP() << "buffers of this test are the host's; tests/gpu/packing_test.cpp has a GPU's";
  const Case c = base_case(LASP_DECAY_SCALAR, false);
  const Pass pass = make_pass(c, {0, 10, 50}, 0), next = make_pass(c, {0, 10, 10, 51}, 0);
  lasp_comm *comms[3] = {};
  ASSERT_EQ(lasp_comm_create_threads(3, comms), LASP_OK);
  on_threads(3, [&](int32_t r) {
    PassRank::Options options;
    options.schedule = LASP_SCHEDULE_DOUBLING, options.verify = 1, options.max_sequences = kMost;
    PassRank rank(c, comms[r], options);
    EXPECT_EQ(rank.run(pass, r == 1), LASP_OK) << lasp_last_error();
    EXPECT_EQ(rank.run(next, r == 0), LASP_OK) << lasp_last_error();
  });
}

}  // namespace
}  // namespace lasp_test
