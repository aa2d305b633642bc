// Ranks that do not come, groups that are aborted and transports that fail, seen through the public interface:
// every rank gets a 5xx status within the time limit, the sentence names the lost rank, and nothing hangs.
#include <gtest/gtest.h>
#include <lasp/lasp.h>

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <initializer_list>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "small_rank.h"

namespace {

using lasp_test::Rank;
using lasp_test::Result;

class Group {
 public:
  Group(int32_t nranks, int64_t time_limit_ms) {
    std::vector<lasp_comm *> comms(static_cast<size_t>(nranks));
    EXPECT_EQ(lasp_comm_create_threads(nranks, comms.data()), LASP_OK);
    for (lasp_comm *comm : comms) ranks.push_back(std::make_unique<Rank>(comm, time_limit_ms));
  }
  // Runs `body` on a thread of each rank but `absent`.
  std::vector<Result> run(const std::function<Result(Rank &)> &body, int absent = -1) {
    std::vector<Result> results(ranks.size());
    std::vector<std::thread> threads;
    for (size_t r = 0; r < ranks.size(); ++r)
      if (static_cast<int>(r) != absent) threads.emplace_back([&, r] { results[r] = body(*ranks[r]); });
    for (std::thread &thread : threads) thread.join();
    return results;
  }
  std::vector<std::unique_ptr<Rank>> ranks;
};

void expect_all_ok(const std::vector<Result> &results) {
  for (const Result &result : results) EXPECT_EQ(result.status, LASP_OK) << result.sentence;
}

void expect_lost(const std::vector<Result> &results, int lost) {
  for (size_t r = 0; r < results.size(); ++r) {
    if (static_cast<int>(r) == lost) continue;
    EXPECT_EQ(results[r].status, LASP_ERROR_PEER_LOST) << "rank " << r << ": " << results[r].sentence;
    EXPECT_NE(results[r].sentence.find("rank " + std::to_string(lost) + " did not come"), std::string::npos)
        << "rank " << r << ": " << results[r].sentence;
  }
}

constexpr int32_t kSchedules[] = {LASP_SCHEDULE_RING, LASP_SCHEDULE_ALL_GATHER, LASP_SCHEDULE_ALL_SCAN,
                                  LASP_SCHEDULE_DOUBLING};

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

// A transport of the test's own, with the public table alone: mailboxes, and one fault at a chosen call.
class Mailboxes {
 public:
  explicit Mailboxes(int32_t nranks) : nranks_(nranks) {}

  struct End {
    Mailboxes *all;
    int32_t rank;
    int calls_until_fault = -1;  // of any function
    lasp_status fault = LASP_ERROR_TRANSPORT;
    int open = 0;  // requests not yet ended
    bool destroyed = false;

    bool fails() { return calls_until_fault >= 0 && calls_until_fault-- == 0; }
  };
  struct Request {
    void *into;
    uint64_t bytes;
    int32_t from, to, tag;
  };

  lasp_transport table(int32_t rank) const {
    lasp_transport t = LASP_TRANSPORT_INIT;
    t.name = "mailbox";
    t.rank = rank;
    t.nranks = nranks_;
    t.send = [](void *user, const void *data, uint64_t bytes, int32_t peer, int32_t tag, lasp_stream,
                void **request) {
      End &end = *static_cast<End *>(user);
      if (end.fails()) return end.fault;
      {
        std::lock_guard lock(end.all->mutex_);
        const auto *first = static_cast<const char *>(data);
        end.all->boxes_[{end.rank, peer, tag}].emplace_back(first, first + bytes);
      }
      end.all->arrived_.notify_all();
      *request = nullptr;  // done at once, with nothing to remember: legal, and still to be ended
      ++end.open;
      return lasp_status{LASP_OK};
    };
    t.receive = [](void *user, void *data, uint64_t bytes, int32_t peer, int32_t tag, lasp_stream, void **request) {
      End &end = *static_cast<End *>(user);
      if (end.fails()) return end.fault;
      *request = new Request{data, bytes, peer, end.rank, tag};
      ++end.open;
      return lasp_status{LASP_OK};
    };
    t.test = [](void *user, void *request, int32_t *done) {
      End &end = *static_cast<End *>(user);
      if (end.fails()) return end.fault;
      const auto *r = static_cast<Request *>(request);
      std::lock_guard lock(end.all->mutex_);
      *done = r == nullptr || !end.all->boxes_[{r->from, r->to, r->tag}].empty();
      return lasp_status{LASP_OK};
    };
    t.wait = [](void *user, void *request, int64_t time_limit_ms, int32_t *lost_rank) {
      End &end = *static_cast<End *>(user);
      if (end.fails()) return end.fault;
      auto *r = static_cast<Request *>(request);
      if (r != nullptr) {
        std::unique_lock lock(end.all->mutex_);
        auto &box = end.all->boxes_[{r->from, r->to, r->tag}];
        const bool in_time = end.all->arrived_.wait_for(lock, std::chrono::milliseconds(time_limit_ms),
                                                        [&] { return !box.empty() || end.all->lost_ >= 0; });
        if (!in_time || box.empty()) {
          *lost_rank = in_time ? end.all->lost_ : r->from;
          return lasp_status{LASP_ERROR_PEER_LOST};
        }
        EXPECT_EQ(box.front().size(), r->bytes) << "sizes must match";
        std::memcpy(r->into, box.front().data(), box.front().size());
        box.pop_front();
      }
      delete r;
      --end.open;
      return lasp_status{LASP_OK};
    };
    t.cancel = [](void *user, void *request) {
      --static_cast<End *>(user)->open;
      delete static_cast<Request *>(request);
    };
    t.abort = [](void *user, int32_t lost_rank) {
      End &end = *static_cast<End *>(user);
      {
        std::lock_guard lock(end.all->mutex_);
        end.all->lost_ = lost_rank >= 0 ? lost_rank : end.rank;
      }
      end.all->arrived_.notify_all();
    };
    t.destroy = [](void *user) { static_cast<End *>(user)->destroyed = true; };
    return t;
  }

 private:
  int32_t nranks_;
  int32_t lost_ = -1;
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::map<std::tuple<int32_t, int32_t, int32_t>, std::deque<std::vector<char>>> boxes_;
};

// Both ranks' plan, forward and backward over the mailboxes; rank 0's transport fails at its `fault_at`-th call.
// Returns whether the fault was reached.
bool run_with_fault(int32_t schedule, int fault_at, lasp_status fault) {
  Mailboxes boxes(2);
  Mailboxes::End ends[2] = {{&boxes, 0}, {&boxes, 1}};
  ends[0].calls_until_fault = fault_at;
  ends[0].fault = fault;
  Result results[2];
  std::vector<std::thread> threads;
  for (int32_t r = 0; r < 2; ++r)
    threads.emplace_back([&, r] {
      const lasp_transport table = boxes.table(r);
      lasp_comm *comm = nullptr;
      ASSERT_EQ(lasp_comm_create_custom(&table, &ends[r], &comm), LASP_OK);
      Rank rank(comm, 20000);
      results[r] = rank.plan(schedule);
      if (results[r].status == LASP_OK) results[r] = rank.forward();
      if (results[r].status == LASP_OK) results[r] = rank.backward();
      if (results[r].status == LASP_ERROR_ABORTED) lasp_context_abort(rank.context());
    });
  for (std::thread &thread : threads) thread.join();
  for (const Mailboxes::End &end : ends) {
    EXPECT_TRUE(end.destroyed);
    EXPECT_EQ(end.open, 0) << "every request must be ended by wait or cancel";
  }
  const bool reached = ends[0].calls_until_fault < 0 && fault_at >= 0;
  if (!reached) {
    EXPECT_EQ(results[0].status, LASP_OK) << results[0].sentence;
    EXPECT_EQ(results[1].status, LASP_OK) << results[1].sentence;
    return false;
  }
  // A fault in `test` is only a hint and may be outlived; else it is this rank's status.
  if (results[0].status != LASP_OK) {
    EXPECT_EQ(results[0].status, fault == LASP_ERROR_ABORTED ? LASP_ERROR_ABORTED : LASP_ERROR_TRANSPORT)
        << "fault " << fault << " at call " << fault_at << ": " << results[0].sentence << " | "
        << results[1].sentence;
    EXPECT_FALSE(results[0].sentence.empty());
    EXPECT_EQ(results[1].status == LASP_OK || results[1].status == LASP_ERROR_PEER_LOST, true)
        << results[1].sentence;
  }
  return true;
}

TEST(CustomTransport, WorksWithThePublicTableAlone) {
  for (const int32_t schedule : kSchedules) EXPECT_FALSE(run_with_fault(schedule, -1, LASP_OK));
}

TEST(CustomTransport, AFaultAtAnyCallIsAnErrorAndNothingLeaks) {
  for (const int32_t schedule : kSchedules)
    for (const lasp_status fault :
         std::initializer_list<lasp_status>{LASP_ERROR_TRANSPORT, LASP_ERROR_ABORTED, 12345, -1}) {
      int at = 0;
      while (at < 64 && run_with_fault(schedule, at, fault)) ++at;
      EXPECT_GE(at, 8) << "fewer transport calls than a plan, a forward and a backward make";
    }
}

}  // namespace
