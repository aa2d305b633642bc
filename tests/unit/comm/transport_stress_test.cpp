// The in-process transport under load: all to all with checksums, and no allocation once warm.
#include <atomic>
#include <cstdlib>
#include <new>

#include "transport_rig.h"

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

using namespace transport_rig;

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
