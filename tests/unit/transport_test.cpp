// The in-process transports, driven through their tables of functions with no engine above them.
#include "transport/transport.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <new>
#include <numeric>
#include <thread>
#include <utility>
#include <vector>

namespace {
std::atomic<uint64_t> allocations{0};
}

// Every allocation of this program is counted, for the test that a warm transport makes none. Not inlined, because
// gcc 12 would take malloc and free for a mismatch of the operators that they implement.
#define NOINLINE __attribute__((noinline))
NOINLINE void *operator new(std::size_t bytes) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  if (void *memory = std::malloc(bytes ? bytes : 1)) return memory;
  throw std::bad_alloc();
}
NOINLINE void *operator new(std::size_t bytes, std::align_val_t alignment) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  void *memory = nullptr;
  if (posix_memalign(&memory, static_cast<std::size_t>(alignment), bytes ? bytes : 1) == 0) return memory;
  throw std::bad_alloc();
}
NOINLINE void operator delete(void *memory) noexcept { std::free(memory); }
NOINLINE void operator delete(void *memory, std::size_t) noexcept { std::free(memory); }
NOINLINE void operator delete(void *memory, std::align_val_t) noexcept { std::free(memory); }
NOINLINE void operator delete(void *memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }

namespace {

using lasp::TransportEnd;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

// Where a test expects no timeout; far above what a loaded machine needs.
constexpr int64_t kLongMs = 60000;

// One end, with calls that read like the contract.
class End {
 public:
  explicit End(const TransportEnd &end) : end_(end) {}

  int rank() const { return end_.table.rank; }
  int nranks() const { return end_.table.nranks; }
  void *send(const void *data, uint64_t bytes, int peer, int tag = 0) {
    void *request = nullptr;
    EXPECT_EQ(end_.table.send(end_.user, data, bytes, peer, tag, nullptr, &request), LASP_OK);
    return request;
  }
  void *receive(void *data, uint64_t bytes, int peer, int tag = 0) {
    void *request = nullptr;
    EXPECT_EQ(end_.table.receive(end_.user, data, bytes, peer, tag, nullptr, &request), LASP_OK);
    return request;
  }
  bool test(void *request) {
    int32_t done = -1;
    EXPECT_EQ(end_.table.test(end_.user, request, &done), LASP_OK);
    return done == 1;
  }
  lasp_status wait(void *request, int64_t limit_ms = kLongMs, int32_t *lost_rank = nullptr) {
    int32_t ignored = -1;
    return end_.table.wait(end_.user, request, limit_ms, lost_rank ? lost_rank : &ignored);
  }
  void cancel(void *request) { end_.table.cancel(end_.user, request); }
  void abort(int lost_rank) { end_.table.abort(end_.user, lost_rank); }
  void destroy() { end_.table.destroy(end_.user); }

 private:
  TransportEnd end_;
};

// A group whose ends are destroyed with it, unless a test did so itself.
class Group {
 public:
  explicit Group(int nranks) {
    for (const TransportEnd &end : lasp::make_thread_transport(nranks)) ends_.emplace_back(end);
    alive_.assign(nranks, 1);
  }
  ~Group() {
    for (size_t rank = 0; rank < ends_.size(); ++rank) destroy(rank);
  }
  End &operator[](size_t rank) { return ends_[rank]; }
  void destroy(size_t rank) {
    if (std::exchange(alive_[rank], 0)) ends_[rank].destroy();
  }
  // Runs `body` once per rank, each in its own thread.
  void run(const std::function<void(End &)> &body) {
    std::vector<std::thread> threads;
    for (End &end : ends_) threads.emplace_back([&body, &end] { body(end); });
    for (std::thread &thread : threads) thread.join();
  }

 private:
  std::vector<End> ends_;
  std::vector<char> alive_;
};

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

TEST(ThreadTransport, SizeMismatchIsToldToBothSides) {
  for (bool send_first : {true, false}) {
    Group group(3);
    int64_t sent = 1, received = 77;
    void *send = send_first ? group[0].send(&sent, 8, 1) : nullptr;
    void *receive = group[1].receive(&received, 4, 0);
    if (!send_first) send = group[0].send(&sent, 8, 1);
    EXPECT_EQ(group[0].wait(send), LASP_ERROR_TRANSPORT);
    EXPECT_EQ(group[1].wait(receive), LASP_ERROR_TRANSPORT);
    EXPECT_EQ(received, 77);
    group[0].cancel(send);
    group[1].cancel(receive);
    void *bystander = group[2].receive(&received, 8, 0);
    EXPECT_EQ(group[2].wait(bystander), LASP_ERROR_TRANSPORT);
    group[2].cancel(bystander);
  }
}

TEST(ThreadTransport, AbortWakesEveryWaiter) {
  Group group(3);
  std::thread breaker([&] {
    std::this_thread::sleep_for(50ms);
    group[2].abort(-1);
    group[2].abort(0);  // the first cause stands
  });
  group.run([&](End &end) {
    int value = 0;
    int32_t lost_rank = 99;
    void *request = end.receive(&value, sizeof value, (end.rank() + 1) % 3);
    EXPECT_EQ(end.wait(request, -1, &lost_rank), LASP_ERROR_ABORTED);
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

// 0 waits on 3, 3 on 2, 2 on 1, and 1 does not come: all name 1, even 0, whose limit is the first to pass; and 1
// itself, when it does come, is told the same.
TEST(ThreadTransport, LostRankIsNamedThroughAChain) {
  Group group(4);
  group.run([&](End &end) {
    const int rank = end.rank();
    int value = 0;
    int32_t lost_rank = -1;
    if (rank == 1) std::this_thread::sleep_for(600ms);
    void *request =
        rank == 1 ? end.send(&value, sizeof value, 2) : end.receive(&value, sizeof value, (rank + 3) % 4);
    const auto start = Clock::now();
    EXPECT_EQ(end.wait(request, rank == 0 ? 200 : kLongMs, &lost_rank), LASP_ERROR_PEER_LOST) << rank;
    EXPECT_EQ(lost_rank, 1) << rank;
    const auto took = Clock::now() - start;
    EXPECT_GE(took, rank == 0 ? 199ms : 0ms);
    EXPECT_LT(took, 5s);
    end.cancel(request);
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
  std::thread destroyer([&] {
    std::this_thread::sleep_for(50ms);
    group.destroy(2);
  });
  std::vector<std::thread> waiters;
  for (int rank : {0, 1}) {
    waiters.emplace_back([&group, rank] {
      int value = 0;
      int32_t lost_rank = -1;
      void *request = group[rank].receive(&value, sizeof value, 2);
      EXPECT_EQ(group[rank].wait(request, -1, &lost_rank), LASP_ERROR_PEER_LOST);
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

uint32_t mix(uint32_t value) {
  value ^= value >> 16;
  value *= 0x7feb352du;
  value ^= value >> 15;
  value *= 0x846ca68bu;
  return value ^ (value >> 16);
}

// One round of every rank to every other, with sizes that vary by sender, receiver and round.
class AllToAll {
 public:
  AllToAll(End &end, size_t most_words) : end_(end), most_(most_words) {
    out_.resize(end.nranks(), std::vector<uint32_t>(most_words));
    in_ = out_;
    requests_.resize(2 * end.nranks());
  }

  void round(uint32_t number) {
    const int ranks = end_.nranks(), me = end_.rank();
    size_t pending = 0;
    for (int peer = 0; peer < ranks; ++peer) {
      const size_t words = words_of(me, peer, number);
      for (size_t i = 0; i < words; ++i) out_[peer][i] = seed(me, peer, number) + static_cast<uint32_t>(i);
      requests_[pending++] = end_.receive(in_[peer].data(), 4 * words_of(peer, me, number), peer, number % 5);
      requests_[pending++] = end_.send(out_[peer].data(), 4 * words, peer, number % 5);
    }
    // Ends in an order of each rank's own.
    for (size_t left = pending; left > 0; --left) {
      std::swap(requests_[mix(number + me * 977 + static_cast<uint32_t>(left)) % left], requests_[left - 1]);
      ASSERT_EQ(end_.wait(requests_[left - 1]), LASP_OK);
    }
    for (int peer = 0; peer < ranks; ++peer) {
      uint32_t sum = 0, expected = 0;
      for (size_t i = 0; i < words_of(peer, me, number); ++i) {
        sum += mix(in_[peer][i] + static_cast<uint32_t>(i));
        expected += mix(seed(peer, me, number) + static_cast<uint32_t>(2 * i));
      }
      ASSERT_EQ(sum, expected) << peer << " to " << me << " in round " << number;
    }
  }

 private:
  static uint32_t seed(int from, int to, uint32_t number) { return mix(from * 7919 + to * 104729 + number); }
  size_t words_of(int from, int to, uint32_t number) const { return seed(to, from, number) % (most_ + 1); }

  End &end_;
  size_t most_;
  std::vector<std::vector<uint32_t>> out_, in_;
  std::vector<void *> requests_;
};

TEST(ThreadTransport, EightRanksAllToAllStress) {
  Group group(8);
  group.run([](End &end) {
    AllToAll exchange(end, 3000);
    for (uint32_t number = 0; number < 200; ++number) exchange.round(number);
  });
}

TEST(ThreadTransport, DoesNotAllocateOnceWarm) {
  Group group(4);
  std::atomic<int> warm{0};
  std::atomic<uint64_t> before{0}, after{0};
  std::atomic<int> finished{0};
  group.run([&](End &end) {
    AllToAll exchange(end, 500);
    for (uint32_t number = 0; number < 20; ++number) exchange.round(number);
    // The last to be warm reads the counter; nobody goes on before it has.
    if (++warm == 4) {
      before = allocations.load();
      warm = 5;
    }
    while (warm != 5) std::this_thread::yield();
    for (uint32_t number = 20; number < 120; ++number) exchange.round(number);
    if (++finished == 4) after = allocations.load();
    while (after == 0) std::this_thread::yield();
  });
  EXPECT_EQ(after - before, 0u);
}

// The smallest and the largest group the library makes: nothing in the transport may need n threads to set up.
TEST(ThreadTransport, GroupsOfOneAndOfManyRanks) {
  Group one(1);
  int sent = 4, received = 0;
  void *send = one[0].send(&sent, sizeof sent, 0);
  EXPECT_EQ(one[0].wait(one[0].receive(&received, sizeof received, 0)), LASP_OK);
  EXPECT_EQ(one[0].wait(send), LASP_OK);
  EXPECT_EQ(received, 4);

  Group many(1024);
  send = many[1023].send(&sent, sizeof sent, 0);
  received = 0;
  EXPECT_EQ(many[0].wait(many[0].receive(&received, sizeof received, 1023)), LASP_OK);
  EXPECT_EQ(many[1023].wait(send), LASP_OK);
  EXPECT_EQ(received, 4);
}

}  // namespace
