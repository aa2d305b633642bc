// Halos where a rank does not come, refuses, disagrees, or makes another call: the same as of passes.
#include <gtest/gtest.h>

#include "small_group.h"

namespace {

using namespace lasp_test;
using Clock = std::chrono::steady_clock;

void make(Group &group, int64_t rows) {
  expect_all_ok(group.run([](Rank &rank) { return rank.plan(LASP_SCHEDULE_RING); }));
  expect_all_ok(group.run([&](Rank &rank) { return rank.halo(rows); }));
}

TEST(HaloPeerLost, IsNamedByWhoeverWaitsForIt) {
  for (const bool forward : {true, false}) {
    SCOPED_TRACE(forward);
    Group group(3, 200);
    make(group, 3);
    const int absent = forward ? 0 : 2;
    const auto results =
        group.run([&](Rank &rank) { return forward ? rank.halo_forward() : rank.halo_backward(); }, absent);
    EXPECT_EQ(results[1].status, LASP_ERROR_PEER_LOST) << results[1].sentence;
    const std::string call = forward ? "lasp_halo_forward" : "lasp_halo_backward";
    EXPECT_EQ(results[1].sentence, "rank " + std::to_string(absent) +
                                       " did not come within the time limit of 200 ms: rank 1 (threads transport) "
                                       "was exchanging a halo in " +
                                       call + ", peer " + std::to_string(absent));
    EXPECT_EQ(group.ranks[1]->async_error(), LASP_ERROR_PEER_LOST);
    EXPECT_EQ(group.ranks[1]->forward().status, LASP_ERROR_PEER_LOST) << "the group is broken";
  }
}

TEST(HaloPeerLost, InCreation) {
  Group group(3, 200);
  expect_all_ok(group.run([](Rank &rank) { return rank.plan(LASP_SCHEDULE_RING); }));
  const auto results = group.run([](Rank &rank) { return rank.halo(3); }, 1);
  for (const size_t r : {0u, 2u}) {
    EXPECT_EQ(results[r].status, LASP_ERROR_PEER_LOST) << results[r].sentence;
    EXPECT_TRUE(contains(results[r].sentence, "rank 1 did not come")) << results[r].sentence;
  }
}

TEST(HaloRefused, InCreationLeavesTheGroupWhole) {
  Group group(3, 5000);
  make(group, 3);
  Rank *const odd = group.ranks[1].get();
  // A mistake of one rank's.
  auto results = group.run([&](Rank &rank) { return rank.halo(&rank == odd ? 65 : 3); });
  EXPECT_EQ(results[1].status, LASP_ERROR_INVALID_ARGUMENT);
  for (const size_t r : {0u, 2u}) {
    EXPECT_EQ(results[r].status, LASP_ERROR_PEER_REFUSED);
    EXPECT_TRUE(contains(results[r].sentence, "rank 1 refused")) << results[r].sentence;
  }
  // Ranks that disagree.
  results = group.run([&](Rank &rank) { return rank.halo(&rank == odd ? 4 : 3); });
  for (const Result &result : results) {
    EXPECT_EQ(result.status, LASP_ERROR_DISAGREEMENT);
    EXPECT_EQ(result.sentence, "rows: rank 0 has 3, rank 1 has 4");
  }
  results = group.run([&](Rank &rank) { return rank.halo(3, &rank == odd ? LASP_FLOAT16 : LASP_FLOAT32); });
  for (const Result &result : results) {
    EXPECT_EQ(result.status, LASP_ERROR_DISAGREEMENT);
    EXPECT_EQ(result.sentence, "x.dtype: rank 0 has LASP_FLOAT32, rank 1 has LASP_FLOAT16");
  }
  expect_all_ok(group.run([](Rank &rank) { return rank.halo_forward(); }));
  expect_all_ok(group.run([](Rank &rank) { return rank.halo_backward(); }));
}

// Plans of different splits: the ranks agree on everything but what they mean.
TEST(HaloRefused, OnPlansThatAreNotTheSame) {
  Group group(2, 5000);
  make(group, 3);
  std::vector<lasp_plan *> others(2);
  const auto other = [&](Rank &rank) {
    const size_t r = &rank == group.ranks[0].get() ? 0 : 1;
    lasp_problem problem = LASP_PROBLEM_INIT;
    problem.tokens = 10, problem.head_dim_k = problem.head_dim_v = kDim;
    return Rank::result(lasp_plan_create(rank.context(), &problem, &others[r]));
  };
  expect_all_ok(group.run(other));
  const auto results = group.run([&](Rank &rank) {
    if (&rank == group.ranks[0].get()) return rank.halo(3);
    lasp_halo_options options = LASP_HALO_OPTIONS_INIT;
    options.rows = 3, options.channels = kHeads * kDim;
    lasp_halo *halo = nullptr;
    return Rank::result(lasp_halo_create(others[1], &options, &halo));
  });
  for (const Result &result : results) {
    EXPECT_EQ(result.status, LASP_ERROR_DISAGREEMENT);
    EXPECT_EQ(result.sentence, "plan: not the same on rank 0 and rank 1");
  }
  for (lasp_plan *plan : others) EXPECT_EQ(lasp_plan_destroy(plan), LASP_OK);
}

TEST(HaloRefused, ACallIsToldToTheOthersAtOnce) {
  Group group(2, 30'000);
  make(group, 3);
  const auto start = Clock::now();
  const auto results = group.run([&](Rank &rank) {
    if (&rank == group.ranks[1].get()) return rank.halo_forward();
    return Rank::result(lasp_halo_forward(rank.made_halo(), nullptr, nullptr));
  });
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(15)) << "somebody waited for the time limit";
  EXPECT_EQ(results[0].status, LASP_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(results[1].status, LASP_ERROR_PEER_LOST) << results[1].sentence;
  EXPECT_TRUE(contains(results[1].sentence, "one of its own calls was refused")) << results[1].sentence;
}

// One rank makes a plan, the other a halo: said at once, and nobody is lost.
TEST(HaloOutOfStep, WithAPlan) {
  Group group(2, 30'000);
  make(group, 3);
  const auto results = group.run([&](Rank &rank) {
    if (&rank == group.ranks[0].get()) return rank.halo(2);
    lasp_problem problem = LASP_PROBLEM_INIT;
    problem.tokens = 10, problem.head_dim_k = problem.head_dim_v = kDim;
    lasp_plan *plan = nullptr;
    return Rank::result(lasp_plan_create(rank.context(), &problem, &plan));
  });
  for (size_t r = 0; r < 2; ++r) EXPECT_EQ(results[r].status, LASP_ERROR_DISAGREEMENT) << results[r].sentence;
  EXPECT_EQ(
      results[0].sentence,
      "rank 1 is in lasp_plan_create, this rank in lasp_halo_create: all ranks must make the same calls in the "
      "same order");
  EXPECT_EQ(
      results[1].sentence,
      "rank 0 is in lasp_halo_create, this rank in lasp_plan_create: all ranks must make the same calls in the "
      "same order");
  expect_all_ok(group.run([](Rank &rank) { return rank.halo_forward(); }));
}

// The gradient of one call is never taken for the rows of another.
TEST(HaloOutOfStep, BothCallsAreNamed) {
  Group group(2, 300);
  make(group, 3);
  // Rank 0 wants gradients, rank 1 rows.
  const auto results = group.run(
      [&](Rank &rank) { return &rank == group.ranks[0].get() ? rank.halo_backward() : rank.halo_forward(); });
  for (size_t r = 0; r < 2; ++r) {
    EXPECT_EQ(results[r].status, LASP_ERROR_PEER_LOST) << results[r].sentence;
    const std::string mine = r == 0 ? "lasp_halo_backward" : "lasp_halo_forward",
                      theirs = r == 0 ? "lasp_halo_forward" : "lasp_halo_backward";
    EXPECT_TRUE(contains(results[r].sentence,
                         "; rank " + std::to_string(1 - r) + " is in " + theirs + ", this rank in " + mine))
        << results[r].sentence;
  }
}

}  // namespace
