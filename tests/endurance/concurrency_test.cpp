// Threads: contexts used at once, a second thread refused, abort in the middle of a wait, and handles destroyed
// after every kind of failure. Clean under ThreadSanitizer.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <thread>

#include "support/deadline.h"
#include "support/sleeper.h"
#include "worker.h"

namespace {

using namespace endurance;
using Clock = std::chrono::steady_clock;
using lasp_test::Sleeper;

constexpr int64_t kTimeLimitMs = 60'000;
// Well below that, and far above what a busy machine needs.
constexpr auto kAtOnce = std::chrono::seconds(20);

void expect_ok(const Answer &answer) { EXPECT_EQ(answer.status, LASP_OK) << answer.sentence; }

std::vector<std::unique_ptr<Worker>> make_group(int32_t nranks) {
  std::vector<lasp_comm *> comms(static_cast<size_t>(nranks));
  EXPECT_EQ(lasp_comm_create_threads(nranks, comms.data()), LASP_OK);
  std::vector<std::unique_ptr<Worker>> workers;
  for (lasp_comm *comm : comms) workers.push_back(std::make_unique<Worker>(comm));
  return workers;
}

void fill(Worker &worker, int seed) {
  for (size_t i = 0; i < worker.q.size(); ++i) {
    worker.q[i] = static_cast<float>((i * 7 + static_cast<size_t>(seed)) % 5) / 4;
    worker.k[i] = static_cast<float>((i * 3 + static_cast<size_t>(seed)) % 7) / 8;
    worker.v[i] = static_cast<float>((i * 5 + static_cast<size_t>(seed)) % 3) - 1;
  }
}

Shape decayed() {
  Shape shape;
  shape.decay = LASP_DECAY_SCALAR;
  shape.tokens = 70;
  return shape;
}

Answer pass_with(Worker &worker, int seed) {
  fill(worker, seed);
  const Answer forward = worker.forward();
  return forward.status == LASP_OK ? worker.backward() : forward;
}

TEST(Concurrency, ContextsOfManyThreadsAtOnce) {
  constexpr int kThreads = 6;
  const int rounds = quick() ? 5 : 40;
  const auto alone = [](int seed) {
    lasp_comm *comm = nullptr;
    EXPECT_EQ(lasp_comm_create_self(&comm), LASP_OK);
    auto worker = std::make_unique<Worker>(comm);
    expect_ok(worker->open(kTimeLimitMs, 2));
    expect_ok(worker->plan(decayed()));
    expect_ok(pass_with(*worker, seed));
    return worker;
  };
  std::vector<std::unique_ptr<Worker>> expected;
  for (int t = 0; t < kThreads; ++t) expected.push_back(alone(t));
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < rounds; ++i) {
        const auto mine = alone(t);
        const Worker &want = *expected[static_cast<size_t>(t)];
        EXPECT_EQ(mine->o, want.o);
        EXPECT_EQ(mine->dq, want.dq);
        EXPECT_EQ(mine->dk, want.dk);
        EXPECT_EQ(mine->dv, want.dv);
      }
    });
  for (std::thread &thread : threads) thread.join();
}

TEST(Concurrency, GroupsOfManyThreadsAtOnce) {
  const int rounds = quick() ? 3 : 20;
  std::vector<std::thread> groups;
  for (const int32_t schedule : kSchedules)
    groups.emplace_back([&, schedule] {
      for (int i = 0; i < rounds; ++i) {
        const auto workers = make_group(3);
        Shape shape = decayed();
        shape.schedule = schedule;
        std::vector<std::thread> ranks;
        for (const auto &worker : workers)
          ranks.emplace_back([&] {
            expect_ok(worker->open(kTimeLimitMs));
            expect_ok(worker->pass(shape));
            expect_ok(worker->close());
          });
        for (std::thread &rank : ranks) rank.join();
      }
    });
  for (std::thread &group : groups) group.join();
}

// Rank 0 waits in a call for rank 1, which does not come.
class InTheMiddleOfAWait : public testing::Test {
 protected:
  void SetUp() override {
    shape.broadcast = true;
    std::vector<std::thread> ranks;
    for (const auto &worker : workers)
      ranks.emplace_back([&] {
        expect_ok(worker->open(kTimeLimitMs));
        expect_ok(worker->plan(shape));
      });
    for (std::thread &rank : ranks) rank.join();
    waiting = std::thread([&] {
      sleeper.begin();
      answer = workers[0]->forward();
      sleeper.end();
    });
    ASSERT_TRUE(sleeper.until_asleep());
    begin = Clock::now();
  }
  void TearDown() override {
    if (waiting.joinable()) waiting.join();
    EXPECT_LT(Clock::now() - begin, kAtOnce) << "waited for the time limit";
    for (const auto &worker : workers) expect_ok(worker->close());
  }
  lasp_test::Deadline deadline{"a wait for a rank that does not come"};
  Shape shape;
  Sleeper sleeper;
  Clock::time_point begin;
  std::vector<std::unique_ptr<Worker>> workers = make_group(2);
  std::thread waiting;
  Answer answer;
};

TEST_F(InTheMiddleOfAWait, ASecondThreadIsRefusedAndMayLook) {
  EXPECT_EQ(workers[0]->async_error(), LASP_OK);
  const Answer second = workers[0]->forward();
  EXPECT_EQ(second.status, LASP_ERROR_IN_USE) << second.sentence;
  EXPECT_NE(second.sentence.find("another thread"), std::string::npos) << second.sentence;
  EXPECT_EQ(lasp_context_destroy(workers[0]->context()),
            LASP_ERROR_IN_USE);  // for the same reason, not for its plan
  EXPECT_NE(std::string(lasp_last_error()).find("another thread"), std::string::npos) << lasp_last_error();
  expect_ok(workers[1]->forward());
  waiting.join();
  expect_ok(answer);
}

TEST_F(InTheMiddleOfAWait, AnotherThreadAborts) {
  ASSERT_EQ(lasp_context_abort(workers[0]->context()), LASP_OK);
  waiting.join();
  EXPECT_EQ(answer.status, LASP_ERROR_ABORTED) << answer.sentence;
  EXPECT_EQ(workers[0]->async_error(), LASP_ERROR_ABORTED);
  EXPECT_EQ(workers[1]->forward().status, LASP_ERROR_ABORTED);
}

TEST_F(InTheMiddleOfAWait, ManyThreadsAbortEveryRank) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 6; ++t)
    threads.emplace_back(
        [&, t] { EXPECT_EQ(lasp_context_abort(workers[static_cast<size_t>(t % 2)]->context()), LASP_OK); });
  for (std::thread &thread : threads) thread.join();
  waiting.join();
  EXPECT_EQ(answer.status, LASP_ERROR_ABORTED) << answer.sentence;
}

TEST_F(InTheMiddleOfAWait, TheOtherRankIsDestroyed) {
  expect_ok(workers[1]->close());
  waiting.join();
  EXPECT_EQ(answer.status, LASP_ERROR_PEER_LOST) << answer.sentence;
  EXPECT_NE(answer.sentence.find("rank 1 did not come"), std::string::npos) << answer.sentence;
}

// The same where the wait is not that of a forward pass.
void abort_while(const char *what, bool planned, const std::function<Answer(Worker &)> &call) {
  SCOPED_TRACE(what);
  const auto workers = make_group(2);
  Shape shape;
  shape.broadcast = true;
  std::vector<std::thread> ranks;
  for (const auto &worker : workers)
    ranks.emplace_back([&] {
      expect_ok(worker->open(kTimeLimitMs));
      if (planned) expect_ok(worker->pass(shape));
    });
  for (std::thread &rank : ranks) rank.join();
  const lasp_test::Deadline deadline("a wait for a rank that does not come");
  Answer answer;
  Sleeper sleeper;
  std::thread waiting([&] {
    sleeper.begin();
    answer = call(*workers[0]);
    sleeper.end();
  });
  EXPECT_TRUE(sleeper.until_asleep());
  const Clock::time_point begin = Clock::now();
  EXPECT_EQ(lasp_context_abort(workers[0]->context()), LASP_OK);
  waiting.join();
  EXPECT_LT(Clock::now() - begin, kAtOnce) << "waited for the time limit";
  EXPECT_EQ(answer.status, LASP_ERROR_ABORTED) << answer.sentence;
  EXPECT_EQ(workers[0]->async_error(), LASP_ERROR_ABORTED);
  EXPECT_EQ(workers[1]->plan(shape).status, LASP_ERROR_ABORTED) << "the other rank does not hear of it";
  for (const auto &worker : workers) expect_ok(worker->close());
}

TEST(Concurrency, AnotherThreadAbortsPlanCreation) {
  abort_while("plan creation", false, [](Worker &worker) { return worker.plan(Shape()); });
}

TEST(Concurrency, AnotherThreadAbortsABackwardPass) {
  abort_while("backward", true, [](Worker &worker) { return worker.backward(); });
}

// Sentences are each thread's own, however many fail at once.
TEST(Concurrency, EveryThreadHasItsOwnSentence) {
  const int rounds = quick() ? 50 : 400;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      lasp_groups groups = LASP_GROUPS_INIT;
      for (int i = 0; i < rounds; ++i) {
        const int32_t rank = 1000 * (t + 1) + i;
        EXPECT_EQ(lasp_groups_of_rank(4, 2, 1, rank, &groups), LASP_ERROR_INVALID_ARGUMENT);
        const std::string sentence = lasp_last_error();
        EXPECT_NE(sentence.find(std::to_string(rank)), std::string::npos) << sentence;
      }
    });
  for (std::thread &thread : threads) thread.join();
}

// Abort at any moment of a pass: each rank's call succeeds or says ABORTED, and all can be destroyed by whatever
// thread, in whatever order.
TEST(Concurrency, AbortAtAnyMoment) {
  const int rounds = quick() ? 24 : 200;
  int aborted = 0;
  for (int i = 0; i < rounds; ++i) {
    const auto workers = make_group(3);
    Shape shape = decayed();
    shape.schedule = kSchedules[i % 4];
    for (const auto &worker : workers) expect_ok(worker->open(kTimeLimitMs));
    std::vector<Answer> answers(3);
    std::vector<std::thread> ranks;
    for (size_t r = 0; r < 3; ++r) ranks.emplace_back([&, r] { answers[r] = workers[r]->pass(shape); });
    std::this_thread::sleep_for(std::chrono::microseconds(i * 7 % 1000));
    EXPECT_EQ(lasp_context_abort(workers[static_cast<size_t>(i % 3)]->context()), LASP_OK);
    for (std::thread &rank : ranks) rank.join();
    for (const Answer &a : answers) {
      EXPECT_TRUE(a.status == LASP_OK || a.status == LASP_ERROR_ABORTED) << a.status << ": " << a.sentence;
      aborted += a.status == LASP_ERROR_ABORTED;
    }
    EXPECT_EQ(workers[static_cast<size_t>(i % 3)]->async_error(), LASP_ERROR_ABORTED);
    for (size_t r = 0; r < 3; ++r) expect_ok(workers[(r + static_cast<size_t>(i)) % 3]->close());
  }
  EXPECT_GT(aborted, 0) << "no abort came in time";
}

// After a failure the order of destruction is still that of ownership.
TEST(Concurrency, DestroyAfterFailure) {
  std::vector<lasp_comm *> comms(2);
  ASSERT_EQ(lasp_comm_create_threads(2, comms.data()), LASP_OK);
  Worker worker(comms[0]);
  expect_ok(worker.open(100));
  EXPECT_EQ(worker.pass(Shape()).status, LASP_ERROR_PEER_LOST);
  EXPECT_EQ(worker.async_error(), LASP_ERROR_PEER_LOST);
  EXPECT_EQ(lasp_comm_destroy(comms[0]), LASP_ERROR_IN_USE);
  std::thread elsewhere([&] { expect_ok(worker.close()); });
  elsewhere.join();
  EXPECT_EQ(lasp_comm_destroy(comms[0]), LASP_ERROR_INVALID_HANDLE);
  EXPECT_EQ(lasp_comm_destroy(comms[1]), LASP_OK);
}

}  // namespace
