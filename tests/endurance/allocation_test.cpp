// Memory runs out at the n-th allocation, for n from 1 until nothing fails any more: every call answers with a
// status, nothing leaks, everything can be destroyed, and the other ranks hear of it long before their time limit.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <thread>

#include "support/kinds.h"
#include "support/mailboxes.h"
#include "worker.h"

namespace {

using namespace endurance;
using Clock = std::chrono::steady_clock;

constexpr int64_t kTimeLimitMs = 60'000;
// Far less than the limit, far more than any of these runs takes on a busy machine under a sanitizer.
constexpr auto kAnswered = std::chrono::seconds(20);
constexpr auto kLook = std::chrono::microseconds(100);
constexpr int64_t kMostAllocations = 5000;  // an endless loop otherwise

// One failure, or no memory at all from then on.
enum class Shortage { kOnce, kForGood };

// The threads transport answers LASP_ERROR_TRANSPORT where it has no memory for a request.
bool is_shortage(lasp_status status) {
  return status == LASP_ERROR_OUT_OF_MEMORY || status == LASP_ERROR_TRANSPORT;
}

// `attempt` gets a quiet run first, then one with each allocation failing, and must leave as many blocks as there
// were. Returns how many allocations it makes.
template <class Attempt>
int64_t until_success(Shortage shortage, Attempt attempt) {
  allocation::fail_at(0);
  attempt(0);
  for (int64_t n = 1; n < kMostAllocations; ++n) {
    const int64_t before = allocation::live_blocks();
    const bool reached = attempt(n);
    const int64_t left = allocation::live_blocks() - before;
    allocation::fail_at(0);
    EXPECT_EQ(left, 0) << "blocks leaked when allocation " << n
                       << (shortage == Shortage::kOnce ? " failed" : " and all after it failed");
    if (!reached) return n - 1;
    if (testing::Test::HasFailure()) return n;
  }
  ADD_FAILURE() << "no end of allocations";
  return 0;
}

// A creation with no handle before it: the status is OUT_OF_MEMORY and the out-parameter untouched, or all is well.
template <class Create>
void expect_creation(Create create) {
  for (const Shortage shortage : {Shortage::kOnce, Shortage::kForGood}) {
    const int64_t count = until_success(shortage, [&](int64_t n) {
      std::vector<lasp_comm *> comms(3, nullptr);
      allocation::fail_at(n, shortage == Shortage::kForGood);
      lasp_status status;
      {
        const allocation::InLibrary in_library;
        status = create(comms.data());
      }
      const bool failed = allocation::failed() > 0, reached = failed || allocation::failed_quietly() > 0;
      EXPECT_EQ(status, failed ? LASP_ERROR_OUT_OF_MEMORY : LASP_OK) << "allocation " << n;
      if (status != LASP_OK) {
        for (const lasp_comm *comm : comms) EXPECT_EQ(comm, nullptr);
        EXPECT_STRNE(lasp_last_error(), "");
      }
      const allocation::InLibrary in_library;  // destroying needs no memory
      for (lasp_comm *comm : comms) EXPECT_EQ(lasp_comm_destroy(comm), LASP_OK);
      return reached;
    });
    EXPECT_GE(count, 2) << "the library's operator new is not this program's";
  }
}

TEST(Allocation, CommOfOne) {
  expect_creation([](lasp_comm **comms) { return lasp_comm_create_self(comms); });
}

TEST(Allocation, CommOfThreads) {
  expect_creation([](lasp_comm **comms) { return lasp_comm_create_threads(3, comms); });
}

TEST(Allocation, CommOfTheCallers) {
  lasp_test::Mailboxes boxes(2);
  static int32_t made, destroyed;
  made = destroyed = 0;
  lasp_transport table = boxes.table(1);
  table.destroy = [](void *) { ++destroyed; };
  expect_creation([&](lasp_comm **comms) {
    EXPECT_EQ(destroyed, made) << "a comm that was not made has no end to destroy";
    const lasp_status status = lasp_comm_create_custom(&table, boxes.user(1), comms);
    made += status == LASP_OK;
    return status;
  });
  EXPECT_EQ(destroyed, made);
  EXPECT_GT(made, 0);
}

struct RankEnd {
  Answer answer;
  bool opened = false;                // the context was made
  bool failed = false;                // an allocation that cannot be done without
  bool reached = false;               // or any
  lasp_status async_error = LASP_OK;  // after a failed call on a plan
};

// `before_destroying` runs between the calls on the group and the destruction, by which others would notice too.
RankEnd run_rank(
    Worker &worker, const Shape &shape, int64_t n, Shortage shortage, int32_t threads,
    const std::function<void()> &before_destroying = [] {}) {
  RankEnd end;
  allocation::fail_at(n, shortage == Shortage::kForGood);
  end.answer = worker.open(kTimeLimitMs, threads, true);  // a look at values takes memory of its own
  end.opened = end.answer.status == LASP_OK;
  if (end.opened) end.answer = worker.pass(shape);
  end.failed = allocation::failed() > 0;
  end.reached = end.failed || allocation::failed_quietly() > 0;
  if (end.opened) {
    end.async_error = worker.async_error();
    before_destroying();
  }
  const Answer closed = worker.close();  // still without memory
  allocation::fail_at(0);
  EXPECT_EQ(closed.status, LASP_OK) << closed.sentence;
  return end;
}

TEST(Allocation, APassOfOneRank) {
  for (const int32_t decay : lasp_test::kDecays)
    for (const Shortage shortage : {Shortage::kOnce, Shortage::kForGood}) {
      Shape shape;
      shape.decay = decay;
      const int64_t count = until_success(shortage, [&](int64_t n) {
        lasp_comm *comm = nullptr;
        EXPECT_EQ(lasp_comm_create_self(&comm), LASP_OK);
        Worker worker(comm);
        const RankEnd end = run_rank(worker, shape, n, shortage, 2);
        EXPECT_EQ(end.answer.status, end.failed ? LASP_ERROR_OUT_OF_MEMORY : LASP_OK)
            << "allocation " << n << ": " << end.answer.sentence;
        return end.reached;
      });
      EXPECT_GE(count, 10);
    }
}

void check_group(const std::vector<RankEnd> &ends, int32_t poor, int64_t n) {
  const std::string named = "rank " + std::to_string(poor) + " did not come";
  for (size_t r = 0; r < ends.size(); ++r) {
    const Answer &a = ends[r].answer;
    SCOPED_TRACE(testing::Message() << "allocation " << n << ", rank " << r << ": " << a.status << " "
                                    << a.sentence);
    if (!ends[static_cast<size_t>(poor)].failed) {
      EXPECT_EQ(a.status, LASP_OK);
    } else if (static_cast<int32_t>(r) == poor) {
      EXPECT_TRUE(is_shortage(a.status));
      if (ends[r].opened) {
        EXPECT_EQ(ends[r].async_error, a.status);
      }
    } else if (a.status != LASP_OK) {  // it may have had all it needed of the poor rank
      EXPECT_EQ(a.status, LASP_ERROR_PEER_LOST);
      EXPECT_NE(a.sentence.find(named), std::string::npos);
      EXPECT_NE(ends[r].async_error, LASP_OK);
    }
  }
}

// Rank `poor` of three has no memory; the others have.
bool group_attempt(int32_t poor, const Shape &shape, int64_t n, Shortage shortage) {
  std::vector<lasp_comm *> comms(3);
  EXPECT_EQ(lasp_comm_create_threads(3, comms.data()), LASP_OK);
  std::vector<std::unique_ptr<Worker>> workers;
  for (lasp_comm *comm : comms) workers.push_back(std::make_unique<Worker>(comm));
  std::vector<RankEnd> ends(3);
  const Clock::time_point begin = Clock::now();
  std::atomic<int> answered{0};
  const auto count = [&] { ++answered; };
  const auto outwait = [&] {
    while (answered < 2 && Clock::now() - begin < kAnswered) std::this_thread::sleep_for(kLook);
  };
  std::vector<std::thread> threads;
  for (int32_t r = 0; r < 3; ++r)
    threads.emplace_back([&, r] {
      const auto i = static_cast<size_t>(r);
      ends[i] = r == poor ? run_rank(*workers[i], shape, n, shortage, 1, outwait)
                          : run_rank(*workers[i], shape, 0, shortage, 1, count);
    });
  for (std::thread &thread : threads) thread.join();
  EXPECT_LT(Clock::now() - begin, kAnswered) << "allocation " << n << ": a rank sat its time limit out";
  check_group(ends, poor, n);
  return ends[static_cast<size_t>(poor)].reached;
}

void group_of_three(int32_t schedule) {
  for (int32_t poor = 0; poor < 3; ++poor)
    for (const Shortage shortage : {Shortage::kOnce, Shortage::kForGood}) {
      if (quick() && (poor != 1 || shortage == Shortage::kOnce)) continue;
      Shape shape;
      shape.schedule = schedule;
      shape.decay = LASP_DECAY_HEAD;
      shape.broadcast = true;
      const int64_t count =
          until_success(shortage, [&](int64_t n) { return group_attempt(poor, shape, n, shortage); });
      EXPECT_GE(count, 10);
    }
}

TEST(Allocation, Ring) { group_of_three(LASP_SCHEDULE_RING); }
TEST(Allocation, AllGather) { group_of_three(LASP_SCHEDULE_ALL_GATHER); }
TEST(Allocation, AllScan) { group_of_three(LASP_SCHEDULE_ALL_SCAN); }
TEST(Allocation, Doubling) { group_of_three(LASP_SCHEDULE_DOUBLING); }
TEST(Allocation, HeadScatter) { group_of_three(LASP_SCHEDULE_HEAD_SCATTER); }
TEST(Allocation, Relay) { group_of_three(LASP_SCHEDULE_RELAY); }

}  // namespace
