// Waits of the in-process transport that give up their time and nothing else, and what a rank is told of the
// others.
#include "transport_rig.h"

namespace {

using namespace transport_rig;

TEST(ThreadTransport, AWaitThatGivesUpLeavesAllAsItWas) {
  Group group(2);
  int sent = 7, received = 0;
  void *receive = group[1].receive(&received, sizeof received, 0);
  for (int i = 0; i < 3; ++i) {
    const auto start = Clock::now();
    EXPECT_EQ(group[1].wait_for(receive, 20), End::Slice::kNotYet);
    EXPECT_GE(Clock::now() - start, 20ms);
  }
  void *send = group[0].send(&sent, sizeof sent, 1);
  EXPECT_EQ(group[1].wait_for(receive, 20), End::Slice::kDone);
  EXPECT_EQ(received, 7);
  EXPECT_EQ(group[0].wait_for(send, 20), End::Slice::kDone);
  // What was given up so far may also be cancelled, or waited for in the other way.
  void *never = group[1].receive(&received, sizeof received, 0);
  EXPECT_EQ(group[1].wait_for(never, 1), End::Slice::kNotYet);
  group[1].cancel(never);
  receive = group[1].receive(&received, sizeof received, 0);
  EXPECT_EQ(group[1].wait_for(receive, 1), End::Slice::kNotYet);
  sent = 9;
  send = group[0].send(&sent, sizeof sent, 1);
  EXPECT_EQ(group[1].wait(receive), LASP_OK);
  EXPECT_EQ(group[0].wait(send), LASP_OK);
  EXPECT_EQ(received, 9);
}

TEST(ThreadTransport, AMessageEndsTheSliceAtOnce) {
  Group group(2);
  int sent = 7, received = 0;
  void *receive = group[1].receive(&received, sizeof received, 0);
  std::thread sender([&] { EXPECT_EQ(group[0].wait(group[0].send(&sent, sizeof sent, 1)), LASP_OK); });
  EXPECT_EQ(group[1].wait_for(receive, kLongMs), End::Slice::kDone);
  sender.join();
  EXPECT_EQ(received, 7);
}

// Rank 1 is between two slices of its wait for rank 2 when rank 0, which waits for rank 1, loses patience.
TEST(ThreadTransport, ARankBetweenSlicesIsStillWaiting) {
  Group group(3);
  int value = 0;
  int32_t lost_rank = -1;
  void *held_up = group[1].receive(&value, sizeof value, 2, 30);
  EXPECT_EQ(group[1].wait_for(held_up, 1), End::Slice::kNotYet);
  EXPECT_EQ(group[0].peer_state(1), (PeerState{LASP_PEER_WAITS, 30}));
  EXPECT_EQ(group[0].peer_state(2), (PeerState{LASP_PEER_UNKNOWN, -1}));
  void *request = group[0].receive(&value, sizeof value, 1, 31);
  EXPECT_EQ(group[0].wait(request, 10, &lost_rank), LASP_ERROR_PEER_LOST);
  EXPECT_EQ(lost_rank, 2);
  // As it was when the group broke, whatever they do since.
  EXPECT_EQ(group[2].peer_state(0), (PeerState{LASP_PEER_WAITS, 31}));
  group[1].cancel(held_up);
  group[0].cancel(request);
  EXPECT_EQ(group[0].peer_state(1), (PeerState{LASP_PEER_WAITS, 30}));
}

TEST(ThreadTransport, ARankThatIsDoneOrCancelledWaitsNoMore) {
  Group group(2);
  int sent = 7, received = 0;
  void *receive = group[1].receive(&received, sizeof received, 0, 5);
  EXPECT_EQ(group[1].wait_for(receive, 1), End::Slice::kNotYet);
  EXPECT_EQ(group[0].wait(group[0].send(&sent, sizeof sent, 1, 5)), LASP_OK);
  EXPECT_EQ(group[1].wait_for(receive, 1), End::Slice::kDone);
  EXPECT_EQ(group[0].peer_state(1), (PeerState{LASP_PEER_UNKNOWN, -1}));
  receive = group[1].receive(&received, sizeof received, 0, 5);
  EXPECT_EQ(group[1].wait_for(receive, 1), End::Slice::kNotYet);
  group[1].cancel(receive);
  EXPECT_EQ(group[0].peer_state(1), (PeerState{LASP_PEER_UNKNOWN, -1}));
}

TEST(ThreadTransport, ToldApartAreARankThatLeftAndOneThatGaveUp) {
  for (const bool left : {true, false}) {
    Group group(3);
    int value = 0;
    int32_t lost_rank = -1;
    void *request = group[0].receive(&value, sizeof value, 1);
    if (left) {
      group.destroy(1);
    } else {
      group[1].abort(1);
    }
    EXPECT_EQ(group[0].wait(request, kLongMs, &lost_rank), LASP_ERROR_PEER_LOST);
    EXPECT_EQ(lost_rank, 1);
    EXPECT_EQ(group[0].peer_state(1), (PeerState{left ? LASP_PEER_LEFT : LASP_PEER_FAILED, -1}));
    group[0].cancel(request);
  }
}

TEST(ThreadTransport, OfARankOutsideTheGroupNothingIsKnown) {
  Group group(2);
  for (const int rank : {-1, 2, 1 << 30}) EXPECT_EQ(group[0].peer_state(rank), (PeerState{LASP_PEER_UNKNOWN, -1}));
}

}  // namespace
