// The in-process transport when something goes wrong: sizes that differ, abort, ranks that do not come or leave.
#include <array>
#include <atomic>
#include <latch>

#include "comm/wait.h"
#include "transport_rig.h"

namespace {

using namespace transport_rig;

TEST(ThreadTransport, SizeMismatchIsToldToBothSides) {
  for (bool send_first : {true, false}) {
    Group group(3);
    int64_t sent = 1, received = 77;
    void *send = send_first ? group[0].send(&sent, 8, 1) : nullptr;
    void *receive = group[1].receive(&received, 4, 0);
    if (!send_first) send = group[0].send(&sent, 8, 1);
    EXPECT_EQ(group[0].wait(send, 1000), LASP_ERROR_TRANSPORT);
    EXPECT_EQ(group[1].wait(receive, 1000), LASP_ERROR_TRANSPORT);
    EXPECT_EQ(received, 77);
    group[0].cancel(send);
    group[1].cancel(receive);
    void *bystander = group[2].receive(&received, 8, 0);
    EXPECT_EQ(group[2].wait(bystander, 1000), LASP_ERROR_TRANSPORT);
    group[2].cancel(bystander);
  }
}

TEST(ThreadTransport, AbortWakesEveryWaiter) {
  Group group(3);
  std::array<Sleeper, 3> sleepers;
  std::thread breaker([&] {
    for (const Sleeper &sleeper : sleepers) EXPECT_TRUE(sleeper.until_asleep());
    group[2].abort(-1);
    group[2].abort(0);  // the first cause stands
  });
  group.run([&](End &end) {
    int value = 0;
    int32_t lost_rank = 99;
    void *request = end.receive(&value, sizeof value, (end.rank() + 1) % 3);
    Sleeper &sleeper = sleepers[static_cast<size_t>(end.rank())];
    sleeper.begin();
    EXPECT_EQ(end.wait(request, -1, &lost_rank), LASP_ERROR_ABORTED);
    sleeper.end();
    EXPECT_EQ(lost_rank, -1);
    end.cancel(request);
  });
  breaker.join();
  int value = 0;
  void *late = group[0].send(&value, sizeof value, 1);
  EXPECT_TRUE(group[0].test(late));
  EXPECT_EQ(group[0].wait(late), LASP_ERROR_ABORTED);
  group[0].cancel(late);
}

TEST(ThreadTransport, AbortMayNameTheLostRank) {
  Group group(2);
  group[0].abort(1);
  int value = 0;
  int32_t lost_rank = -1;
  void *request = group[1].send(&value, sizeof value, 0);
  EXPECT_EQ(group[1].wait(request, kLongMs, &lost_rank), LASP_ERROR_PEER_LOST);
  EXPECT_EQ(lost_rank, 1);
  group[1].cancel(request);
}

// 0 waits on 3, 3 on 2, 2 on 1, and 1 does not come: all name 1, even 0, whose limit is the only one to pass; and 1
// itself, when it does come, is told the same.
TEST(ThreadTransport, LostRankIsNamedThroughAChain) {
  Group group(4);
  std::latch others_told(3);
  group.run([&](End &end) {
    const int rank = end.rank();
    int value = 0;
    int32_t lost_rank = -1;
    if (rank == 1) others_told.wait();
    void *request =
        rank == 1 ? end.send(&value, sizeof value, 2) : end.receive(&value, sizeof value, (rank + 3) % 4);
    const auto start = Clock::now();
    EXPECT_EQ(end.wait(request, rank == 0 ? 200 : kLongMs, &lost_rank), LASP_ERROR_PEER_LOST) << rank;
    EXPECT_EQ(lost_rank, 1) << rank;
    const auto took = Clock::now() - start;
    EXPECT_GE(took, rank == 0 ? 199ms : 0ms);
    EXPECT_LT(took, 20s) << "waited for its own limit";
    end.cancel(request);
    if (rank != 1) others_told.count_down();
  });
}

TEST(ThreadTransport, ACircleNamesTheDirectPeer) {
  Group group(3);
  group.run([&](End &end) {
    int value = 0;
    int32_t lost_rank = -1;
    void *request = end.receive(&value, sizeof value, (end.rank() + 1) % 3);
    EXPECT_EQ(end.wait(request, end.rank() == 1 ? 100 : kLongMs, &lost_rank), LASP_ERROR_PEER_LOST);
    EXPECT_EQ(lost_rank, 2);  // rank 1's limit passes, and 1 waits on 2
    end.cancel(request);
  });
}

// Rank 2 stands beside it: looking along the circle as often as there are ranks does not end at the direct peer.
TEST(ThreadTransport, ACircleOfSomeNamesTheDirectPeer) {
  for (const int patient : {0, 1}) {
    Group group(3);
    int value = 0;
    int32_t lost_rank = -1;
    void *held_up = group[patient].receive(&value, sizeof value, 1 - patient);
    ASSERT_EQ(group[patient].wait_for(held_up, 1), End::Slice::kNotYet);  // it goes on waiting
    void *request = group[1 - patient].receive(&value, sizeof value, patient);
    EXPECT_EQ(group[1 - patient].wait(request, 10, &lost_rank), LASP_ERROR_PEER_LOST);
    EXPECT_EQ(lost_rank, patient);
    group[1 - patient].cancel(request);
    group[patient].cancel(held_up);
  }
}

TEST(ThreadTransport, AZeroLimitDoesNotBlock) {
  Group group(2);
  int value = 0;
  int32_t lost_rank = -1;
  void *request = group[0].receive(&value, sizeof value, 1);
  EXPECT_EQ(group[0].wait(request, 0, &lost_rank), LASP_ERROR_PEER_LOST);
  EXPECT_EQ(lost_rank, 1);
  group[0].cancel(request);
}

TEST(ThreadTransport, DestroyedWhileAwaitedIsLost) {
  Group group(3);
  std::array<Sleeper, 2> sleepers;
  std::thread destroyer([&] {
    for (const Sleeper &sleeper : sleepers) EXPECT_TRUE(sleeper.until_asleep());
    group.destroy(2);
  });
  std::vector<std::thread> waiters;
  for (size_t rank : {0, 1}) {
    waiters.emplace_back([&, rank] {
      int value = 0;
      int32_t lost_rank = -1;
      void *request = group[rank].receive(&value, sizeof value, 2);
      sleepers[rank].begin();
      EXPECT_EQ(group[rank].wait(request, -1, &lost_rank), LASP_ERROR_PEER_LOST);
      sleepers[rank].end();
      EXPECT_EQ(lost_rank, 2);
      group[rank].cancel(request);
    });
  }
  for (std::thread &waiter : waiters) waiter.join();
  destroyer.join();
}

TEST(ThreadTransport, DestroyedBeforeAwaitedIsLostAtOnce) {
  Group group(3);
  group.destroy(1);
  int sent = 9, received = 0;
  void *send = group[0].send(&sent, sizeof sent, 2);  // the others go on among themselves
  void *receive = group[2].receive(&received, sizeof received, 0);
  EXPECT_EQ(group[2].wait(receive), LASP_OK);
  EXPECT_EQ(group[0].wait(send), LASP_OK);
  int32_t lost_rank = -1;
  void *lost = group[0].receive(&received, sizeof received, 1);
  EXPECT_EQ(group[0].wait(lost, -1, &lost_rank), LASP_ERROR_PEER_LOST);
  EXPECT_EQ(lost_rank, 1);
}

// The requests that a leaving rank never used say nothing of an owner: a wait of rank 0's goes on, and ends in
// time.
TEST(ThreadTransport, ARankThatLeavesDoesNotDisturbAnotherWait) {
  Group group(3);
  int token = 1, value = 0;
  void *send = group[2].send(&token, sizeof token, 1), *receive = group[1].receive(&value, sizeof value, 2);
  EXPECT_EQ(group[1].wait(receive), LASP_OK);  // rank 2 has requests now, all but one unused
  EXPECT_EQ(group[2].wait(send), LASP_OK);
  Sleeper sleeper;
  std::thread waiter([&] {
    int received = 0;
    void *const request = group[0].receive(&received, sizeof received, 1);
    const auto begin = Clock::now();
    sleeper.begin();
    EXPECT_EQ(group[0].wait(request, 30000), LASP_OK);
    sleeper.end();
    EXPECT_LT(Clock::now() - begin, 20s) << "found the message only when its limit passed";
    EXPECT_EQ(received, 5);
  });
  EXPECT_TRUE(sleeper.until_asleep());
  group.destroy(2);
  int late = 5;
  EXPECT_EQ(group[1].wait(group[1].send(&late, sizeof late, 0)), LASP_OK);
  waiter.join();
}

// Nor does it become the reason of a break that has another, for a rank that is between two slices of its wait.
TEST(ThreadTransport, ARankThatLeavesABrokenGroupIsNotTheReason) {
  Group group(2);
  int32_t data = 0;
  void *request = group[0].receive(&data, sizeof data, 1);
  ASSERT_EQ(group[0].wait_for(request, 1), End::Slice::kNotYet);
  group[1].abort(-1);
  group.destroy(1);
  int32_t lost_rank = -1;
  EXPECT_EQ(group[0].wait(request, kLongMs, &lost_rank), LASP_ERROR_ABORTED);
  EXPECT_EQ(lost_rank, -1);
  group[0].cancel(request);
}

// A request left unended by its rank must not be reached through the group once its end is gone.
TEST(ThreadTransport, DestroyWithdrawsWhatIsPending) {
  Group group(2);
  int value = 3;
  group[0].send(&value, sizeof value, 1);
  group.destroy(0);
  int received = 77;
  int32_t lost_rank = -1;
  void *request = group[1].receive(&received, sizeof received, 0);
  EXPECT_EQ(group[1].wait(request, kLongMs, &lost_rank), LASP_ERROR_PEER_LOST);
  EXPECT_EQ(lost_rank, 0);
  EXPECT_EQ(received, 77);
}

// However long a limit is that a comm may give, it is none that has passed; in microseconds, and in the clock's
// nanoseconds, these need more than 32 and 53 bits.
TEST(ThreadTransport, TheLongestLimitsDoNotPass) {
  for (const int64_t limit :
       {lasp::kLongestLimitMs, lasp::kLongestLimitMs - 1, int64_t{1} << 32, int64_t{1} << 31}) {
    Group group(2);
    Sleeper sleeper;
    int received = 0, sent = 3;
    std::thread waiter([&] {
      void *const request = group[0].receive(&received, sizeof received, 1);
      sleeper.begin();
      EXPECT_EQ(group[0].wait(request, limit), LASP_OK) << limit;
      sleeper.end();
    });
    EXPECT_TRUE(sleeper.until_asleep()) << limit;
    EXPECT_EQ(group[1].wait(group[1].send(&sent, sizeof sent, 0)), LASP_OK);
    waiter.join();
    EXPECT_EQ(received, 3) << limit;
  }
}

}  // namespace
