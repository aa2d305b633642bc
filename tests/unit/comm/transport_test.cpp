// The in-process transports, driven through their tables of functions with no engine above them: messages.
#include <cstring>
#include <numeric>

#include "transport_rig.h"

namespace {

using namespace transport_rig;

TEST(SelfTransport, RefusesMessages) {
  TransportEnd end = lasp::make_self_transport();
  EXPECT_EQ(end.table.size, sizeof(lasp_transport));
  EXPECT_EQ(end.table.rank, 0);
  EXPECT_EQ(end.table.nranks, 1);
  char byte = 0;
  void *request = nullptr;
  EXPECT_EQ(end.table.send(end.user, &byte, 1, 0, 0, nullptr, &request), LASP_ERROR_TRANSPORT);
  EXPECT_EQ(end.table.receive(end.user, &byte, 1, 0, 0, nullptr, &request), LASP_ERROR_TRANSPORT);
  EXPECT_EQ(request, nullptr);
}

TEST(ThreadTransport, TableDescribesTheGroup) {
  auto ends = lasp::make_thread_transport(3);
  ASSERT_EQ(ends.size(), 3u);
  for (int rank = 0; rank < 3; ++rank) {
    const lasp_transport &table = ends[rank].table;
    EXPECT_EQ(table.size, sizeof(lasp_transport));
    EXPECT_STREQ(table.name, "threads");
    EXPECT_EQ(table.rank, rank);
    EXPECT_EQ(table.nranks, 3);
    EXPECT_EQ(table.local_ranks, 3);
    EXPECT_GT(table.latency_us, 0.0);
    EXPECT_GT(table.bandwidth_gbs, 0.0);
    table.destroy(ends[rank].user);
  }
}

TEST(ThreadTransport, RefusesPeersOutsideTheGroup) {
  auto ends = lasp::make_thread_transport(2);
  char byte = 0;
  void *request = nullptr;
  for (int peer : {-1, 2}) {
    EXPECT_EQ(ends[0].table.send(ends[0].user, &byte, 1, peer, 0, nullptr, &request), LASP_ERROR_TRANSPORT);
    EXPECT_EQ(ends[0].table.receive(ends[0].user, &byte, 1, peer, 0, nullptr, &request), LASP_ERROR_TRANSPORT);
  }
  for (TransportEnd &end : ends) end.table.destroy(end.user);
}

// Both orders of coming: all sends first, then all receives first.
TEST(ThreadTransport, OneTagIsFirstInFirstOut) {
  Group group(2);
  constexpr int kMessages = 100;  // more than a rank's first block of requests
  for (bool send_first : {true, false}) {
    std::vector<int> sent(kMessages), received(kMessages, -1);
    std::iota(sent.begin(), sent.end(), 100);
    std::vector<void *> sends(kMessages), receives(kMessages);
    auto post_sends = [&] {
      for (int i = 0; i < kMessages; ++i) sends[i] = group[0].send(&sent[i], sizeof(int), 1, 7);
    };
    if (send_first) post_sends();
    for (int i = 0; i < kMessages; ++i) receives[i] = group[1].receive(&received[i], sizeof(int), 0, 7);
    if (!send_first) post_sends();
    for (int i = kMessages - 1; i >= 0; --i) {  // ended in the other order
      EXPECT_EQ(group[1].wait(receives[i]), LASP_OK);
      EXPECT_EQ(group[0].wait(sends[i]), LASP_OK);
    }
    EXPECT_EQ(sent, received);
  }
}

TEST(ThreadTransport, TagsAndDirectionsDoNotMix) {
  Group group(2);
  int a = 1, b = 2, back = 3, got_a = 0, got_b = 0, got_back = 0;
  void *send_a = group[0].send(&a, sizeof a, 1, 1);
  void *send_b = group[0].send(&b, sizeof b, 1, 2);
  void *receive_b = group[1].receive(&got_b, sizeof b, 0, 2);
  void *send_back = group[1].send(&back, sizeof back, 0, 1);
  EXPECT_TRUE(group[1].test(receive_b));
  EXPECT_FALSE(group[0].test(send_a));
  void *receive_back = group[0].receive(&got_back, sizeof back, 1, 1);
  void *receive_a = group[1].receive(&got_a, sizeof a, 0, 1);
  for (void *request : {send_a, send_b, receive_back}) EXPECT_EQ(group[0].wait(request), LASP_OK);
  for (void *request : {receive_b, receive_a, send_back}) EXPECT_EQ(group[1].wait(request), LASP_OK);
  EXPECT_EQ(got_a, 1);
  EXPECT_EQ(got_b, 2);
  EXPECT_EQ(got_back, 3);
}

TEST(ThreadTransport, ARankMaySendToItself) {
  Group group(2);
  int sent = 5, received = 0;
  void *send = group[1].send(&sent, sizeof sent, 1);
  void *receive = group[1].receive(&received, sizeof received, 1);
  EXPECT_EQ(group[1].wait(receive), LASP_OK);
  EXPECT_EQ(group[1].wait(send), LASP_OK);
  EXPECT_EQ(received, 5);
}

TEST(ThreadTransport, AllSizesArriveWhole) {
  Group group(2);
  for (size_t bytes : {size_t{0}, size_t{4}, size_t{4095}, size_t{1} << 20}) {
    std::vector<unsigned char> sent(bytes), received(bytes + 8, 0xee);
    for (size_t i = 0; i < bytes; ++i) sent[i] = static_cast<unsigned char>(i * 131 + bytes);
    group.run([&](End &end) {
      if (end.rank() == 0) {
        EXPECT_EQ(end.wait(end.send(bytes ? sent.data() : nullptr, bytes, 1)), LASP_OK);
      } else {
        EXPECT_EQ(end.wait(end.receive(received.data(), bytes, 0)), LASP_OK);
      }
    });
    EXPECT_TRUE(bytes == 0 || std::memcmp(sent.data(), received.data(), bytes) == 0);
    for (size_t i = bytes; i < received.size(); ++i) EXPECT_EQ(received[i], 0xee);
  }
}

TEST(ThreadTransport, CancelledRequestsAreNeverTouched) {
  Group group(2);
  auto buffer = std::make_unique<int>(41);
  void *receive = group[1].receive(buffer.get(), sizeof(int), 0);
  group[1].cancel(receive);
  EXPECT_EQ(*buffer, 41);
  buffer.reset();  // under ASan a late write would be caught

  int second = 43, got = 0;
  auto first = std::make_unique<int>(42);
  group[0].cancel(group[0].send(first.get(), sizeof(int), 1));
  first.reset();
  void *send = group[0].send(&second, sizeof(int), 1);
  void *next = group[1].receive(&got, sizeof(int), 0);
  EXPECT_EQ(group[1].wait(next), LASP_OK);
  EXPECT_EQ(got, 43);
  group[0].cancel(send);  // complete: cancel frees it all the same
}

// A receiver cancels and frees its memory while the sender may be in the middle of the copy.
TEST(ThreadTransport, CancelRacesTheCopy) {
  Group group(2);
  std::vector<char> data(256 << 10, 'x');
  group.run([&](End &end) {
    for (int round = 0; round < 300; ++round) {
      if (end.rank() == 0) {
        end.cancel(end.send(data.data(), data.size(), 1, round));
      } else {
        auto target = std::make_unique<char[]>(data.size());
        void *receive = end.receive(target.get(), data.size(), 0, round);
        if (round % 3 == 0) std::this_thread::yield();
        end.cancel(receive);
      }
    }
  });
}

}  // namespace
