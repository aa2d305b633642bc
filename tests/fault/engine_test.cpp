// Ranks that do not come and groups that are aborted, seen through the public interface: every rank gets a 5xx
// status within the time limit, the sentence names the lost rank, and nothing hangs. Transports that fail:
// injection_test.cpp.
#include <gtest/gtest.h>
#include <lasp/lasp.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "small_group.h"

namespace {

using namespace lasp_test;

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
  for (const int32_t schedule : kSchedules)
    for (int absent = 0; absent < 4; ++absent) {
      SCOPED_TRACE(testing::Message() << "schedule " << schedule << " absent " << absent);
      Group group(4, 200);
      expect_all_ok(group.run([&](Rank &rank) { return rank.plan(schedule, true); }));
      // The broadcast of the final state makes every rank wait for every other one.
      expect_lost(group.run([](Rank &rank) { return rank.forward(); }, absent), absent);
    }
}

TEST(PeerLost, InBackwardOnEverySchedule) {
  for (const int32_t schedule : kSchedules) {
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
  Group group(2, 100);
  expect_all_ok(group.run([](Rank &rank) { return rank.plan(LASP_SCHEDULE_RING); }));
  expect_lost({group.ranks[0]->forward()}, 1);
  EXPECT_EQ(group.ranks[0]->async_error(), LASP_ERROR_PEER_LOST);
  const auto begin = std::chrono::steady_clock::now();
  const Result again = group.ranks[0]->forward();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(50))
      << "must not wait a second time";
  EXPECT_EQ(again.status, LASP_ERROR_PEER_LOST);
  EXPECT_NE(again.sentence.find("unusable"), std::string::npos) << again.sentence;
  // The rank that comes too late learns it too.
  EXPECT_EQ(group.ranks[1]->forward().status, LASP_ERROR_PEER_LOST);
  Group fresh(2, 5000);
  expect_all_ok(fresh.run([](Rank &rank) { return rank.plan(LASP_SCHEDULE_RING); }));
  expect_all_ok(fresh.run([](Rank &rank) { return rank.forward(); }));
}

TEST(PeerLost, ARankThatIsLateWithinTheLimitIsNotLost) {
  Group group(3, 10000);
  expect_all_ok(group.run([](Rank &rank) { return rank.plan(LASP_SCHEDULE_RING); }));
  Rank *late = group.ranks[1].get();
  expect_all_ok(group.run([&](Rank &rank) {
    if (&rank == late) std::this_thread::sleep_for(std::chrono::milliseconds(300));
    return rank.forward();
  }));
}

TEST(PeerLost, ADestroyedEndIsNoticedAtOnce) {
  Group group(2, 60000);
  expect_all_ok(group.run([](Rank &rank) { return rank.plan(LASP_SCHEDULE_RING); }));
  std::thread leaver([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    group.ranks[0].reset();
  });
  const Result result = group.ranks[1]->forward();
  leaver.join();
  expect_lost({Result{}, result}, 0);
}

TEST(Abort, WakesThisRankAndTheOthers) {
  Group group(3, 60000);
  expect_all_ok(group.run([](Rank &rank) { return rank.plan(LASP_SCHEDULE_RING); }));
  std::thread aborter([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    EXPECT_EQ(lasp_context_abort(group.ranks[2]->context()), LASP_OK);
  });
  const auto results = group.run([](Rank &rank) { return rank.forward(); }, 0);  // rank 0 never comes
  aborter.join();
  for (const size_t r : {1u, 2u}) EXPECT_EQ(results[r].status, LASP_ERROR_ABORTED) << results[r].sentence;
  EXPECT_EQ(group.ranks[2]->async_error(), LASP_ERROR_ABORTED);
  EXPECT_EQ(group.ranks[2]->forward().status, LASP_ERROR_ABORTED);
}

}  // namespace
