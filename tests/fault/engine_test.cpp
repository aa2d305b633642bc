// Ranks that do not come and groups that are aborted, seen through the public interface: every rank gets a 5xx
// status within the time limit, the sentence names the lost rank, and nothing hangs. Transports that fail:
// injection_test.cpp.
#include <gtest/gtest.h>
#include <lasp/lasp.h>

#include <array>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "small_group.h"
#include "support/sleeper.h"

namespace {

using namespace lasp_test;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using std::chrono::seconds;

// A forward pass in which the rank will have to wait, for others to see.
Result forward_asleep(Rank &rank, Sleeper &sleeper) {
  sleeper.begin();
  Result result = rank.forward();
  sleeper.end();
  return result;
}

void expect_lost(const std::vector<Result> &results, int lost) {
  for (size_t r = 0; r < results.size(); ++r) {
    if (static_cast<int>(r) == lost) continue;
    EXPECT_EQ(results[r].status, LASP_ERROR_PEER_LOST) << "rank " << r << ": " << results[r].sentence;
    EXPECT_NE(results[r].sentence.find("rank " + std::to_string(lost) + " did not come"), std::string::npos)
        << "rank " << r << ": " << results[r].sentence;
  }
}

TEST(PeerLost, InPlanCreation) {
  for (int absent = 0; absent < 4; ++absent) {
    Group group(4, 200);
    expect_lost(group.run([](Rank &rank) { return rank.plan(LASP_SCHEDULE_AUTO); }, absent), absent);
  }
}

TEST(PeerLost, InForwardOnEverySchedule) {
  for (const int32_t schedule : kSchedulesAndRelay)
    for (int absent = 0; absent < 4; ++absent) {
      SCOPED_TRACE(testing::Message() << "schedule " << schedule << " absent " << absent);
      Group group(4, 200);
      expect_all_ok(group.run([&](Rank &rank) { return rank.plan(schedule, true); }));
      // The broadcast of the final state makes every rank wait for every other one.
      expect_lost(group.run([](Rank &rank) { return rank.forward(); }, absent), absent);
    }
}

TEST(PeerLost, InBackwardOnEverySchedule) {
  for (const int32_t schedule : kSchedulesAndRelay) {
    SCOPED_TRACE(testing::Message() << "schedule " << schedule);
    Group group(3, 200);
    expect_all_ok(group.run([&](Rank &rank) { return rank.plan(schedule); }));
    expect_all_ok(group.run([](Rank &rank) { return rank.forward(); }));
    // Rank 1 stands between the others in every schedule.
    const auto results = group.run([](Rank &rank) { return rank.backward(); }, 1);
    expect_lost({results[0], results[1]}, 1);
  }
}

TEST(PeerLost, LeavesTheCommUnusableAndSaysSo) {
  Group group(2, 2000);
  expect_all_ok(group.run([](Rank &rank) { return rank.plan(LASP_SCHEDULE_RING); }));
  expect_lost({group.ranks[0]->forward()}, 1);
  EXPECT_EQ(group.ranks[0]->async_error(), LASP_ERROR_PEER_LOST);
  const auto begin = Clock::now();
  const Result again = group.ranks[0]->forward();
  EXPECT_LT(Clock::now() - begin, milliseconds(1000)) << "must not wait a second time";
  EXPECT_EQ(again.status, LASP_ERROR_PEER_LOST);
  EXPECT_NE(again.sentence.find("unusable"), std::string::npos) << again.sentence;
  // The rank that comes too late learns it too.
  EXPECT_EQ(group.ranks[1]->forward().status, LASP_ERROR_PEER_LOST);
  Group fresh(2, 5000);
  expect_all_ok(fresh.run([](Rank &rank) { return rank.plan(LASP_SCHEDULE_RING); }));
  expect_all_ok(fresh.run([](Rank &rank) { return rank.forward(); }));
}

TEST(PeerLost, ARankThatIsLateWithinTheLimitIsNotLost) {
  Group group(3, 20000);
  expect_all_ok(group.run([](Rank &rank) { return rank.plan(LASP_SCHEDULE_RING); }));
  std::array<Sleeper, 3> sleepers;
  const Rank *const late = group.ranks[1].get();
  expect_all_ok(group.run([&](Rank &rank) {
    if (&rank != late) return forward_asleep(rank, sleepers[&rank == group.ranks[0].get() ? 0 : 2]);
    EXPECT_TRUE(sleepers[0].until_asleep() && sleepers[2].until_asleep());
    return rank.forward();
  }));
}

TEST(PeerLost, ADestroyedEndIsNoticedAtOnce) {
  Group group(2, 30000);
  expect_all_ok(group.run([](Rank &rank) { return rank.plan(LASP_SCHEDULE_RING); }));
  Sleeper sleeper;
  Clock::time_point left;
  std::thread leaver([&] {
    EXPECT_TRUE(sleeper.until_asleep());
    left = Clock::now();
    group.ranks[0].reset();
  });
  const Result result = forward_asleep(*group.ranks[1], sleeper);
  const Clock::time_point told = Clock::now();
  leaver.join();
  EXPECT_LT(told - left, seconds(15)) << "waited for the time limit";
  expect_lost({Result{}, result}, 0);
}

TEST(Abort, WakesThisRankAndTheOthers) {
  Group group(3, 30000);
  expect_all_ok(group.run([](Rank &rank) { return rank.plan(LASP_SCHEDULE_RING); }));
  std::array<Sleeper, 3> sleepers;
  Clock::time_point begin;
  std::thread aborter([&] {
    EXPECT_TRUE(sleepers[1].until_asleep() && sleepers[2].until_asleep());
    begin = Clock::now();
    EXPECT_EQ(lasp_context_abort(group.ranks[2]->context()), LASP_OK);
  });
  const auto results = group.run(  // rank 0 never comes
      [&](Rank &rank) { return forward_asleep(rank, sleepers[&rank == group.ranks[1].get() ? 1 : 2]); }, 0);
  aborter.join();
  EXPECT_LT(Clock::now() - begin, seconds(15)) << "waited for the time limit";
  for (const size_t r : {1u, 2u}) EXPECT_EQ(results[r].status, LASP_ERROR_ABORTED) << results[r].sentence;
  EXPECT_EQ(group.ranks[2]->async_error(), LASP_ERROR_ABORTED);
  EXPECT_EQ(group.ranks[2]->forward().status, LASP_ERROR_ABORTED);
}

}  // namespace
