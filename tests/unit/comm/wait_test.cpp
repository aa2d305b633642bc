// A wait for other ranks, without any: when it ends, whom it asks and warns meanwhile, and how a comm waits by each
// kind of transport. Times are given to it where they can be.
#include "comm/wait.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "comm/comm.h"
#include "engine/context.h"
#include "unit/scripted_transport.h"

namespace lasp {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// What it throws; status LASP_OK: nothing.
template <class Body>
Error thrown_by(Body body) {
  try {
    body();
  } catch (const Error &error) {
    return error;
  }
  return {LASP_OK, ""};
}

struct Lines {
  std::vector<std::string> texts;
  static void write(void *user, int32_t level, const char *message) {
    static_cast<Lines *>(user)->texts.push_back(std::to_string(level) + " " + message);
  }
};

struct Questions {
  int asked = 0, yes_at = 0;
  static int32_t answer(void *user) {
    auto &self = *static_cast<Questions *>(user);
    return ++self.asked == self.yes_at ? 1 : 0;
  }
};

class WaitTest : public testing::Test {
 protected:
  WaitTest() { comm.enter("lasp_forward"); }
  Wait wait(int32_t peer = 2) { return Wait(comm, policy, "waiting for a state", peer, begin); }

  ScriptedTransport transport;
  Comm comm{transport.table(true), &transport};
  WaitPolicy policy;
  const Wait::Clock::time_point begin = Wait::Clock::now();
};

TEST_F(WaitTest, EndsWithItsLimitAndNotBefore) {
  policy.limit_ms = 300;
  Wait w = wait();
  EXPECT_EQ(w.left_ms(begin), 300);
  EXPECT_EQ(w.left_ms(begin + std::chrono::microseconds(1)), 300) << "rounded up: not a moment too early";
  EXPECT_EQ(w.left_ms(begin + milliseconds(400)), 0);
  EXPECT_EQ(thrown_by([&] { w.poll(begin + milliseconds(299)); }).status, LASP_OK);
  const Error late = thrown_by([&] { w.poll(begin + milliseconds(300)); });
  EXPECT_EQ(late.status, LASP_ERROR_PEER_LOST);
  EXPECT_EQ(
      late.sentence,
      "rank 2 did not come within the time limit of 300 ms: rank 1 (scripted transport) was waiting for a state "
      "in lasp_forward, peer 2");
  EXPECT_EQ(transport.aborted_with, 2) << "the others were not told";
  EXPECT_EQ(comm.async_status(), LASP_ERROR_PEER_LOST);
}

TEST_F(WaitTest, TheFirstReasonOfABreakStands) {
  policy.limit_ms = 10;
  thrown_by([&] { wait().poll(begin + seconds(1)); });
  thrown_by([&] { comm.lose({LASP_ERROR_TRANSPORT, "another reason"}, 0); });
  const Error later = thrown_by([&] { comm.require_usable(); });
  EXPECT_EQ(later.status, LASP_ERROR_PEER_LOST);
  EXPECT_NE(later.sentence.find("rank 2 did not come"), std::string::npos) << later.sentence;
}

TEST_F(WaitTest, OfSeveralRanksNamesNone) {
  policy.limit_ms = 10;
  const Error late = thrown_by([&] { wait(-1).poll(begin + seconds(1)); });
  EXPECT_NE(late.sentence.find("a rank did not come"), std::string::npos) << late.sentence;
  EXPECT_EQ(late.sentence.find("peer"), std::string::npos) << late.sentence;
}

TEST_F(WaitTest, WithoutALimitNeverEnds) {
  Wait w = wait();
  EXPECT_EQ(w.left_ms(begin + std::chrono::hours(100'000)), -1);
  EXPECT_EQ(thrown_by([&] { w.poll(begin + std::chrono::hours(100'000)); }).status, LASP_OK);
}

TEST_F(WaitTest, TheLongestLimitDoesNotOverflow) {
  policy.limit_ms = kLongestLimitMs;
  Wait w = wait();
  EXPECT_EQ(w.left_ms(begin), kLongestLimitMs);
  EXPECT_EQ(thrown_by([&] { w.poll(begin + std::chrono::hours(1)); }).status, LASP_OK);
}

TEST(TimeLimit, IsTakenInOnePlace) {
  ScriptedTransport transport;
  Comm comm(transport.table(true), &transport);
  const auto limit = [&](int64_t given) {
    lasp_context_options options = LASP_CONTEXT_OPTIONS_INIT;
    options.cpu_threads = 1;
    options.time_limit_ms = given;
    return Context(comm, options).wait_policy().limit_ms;
  };
  EXPECT_EQ(limit(0), 600'000);
  EXPECT_EQ(limit(-1), -1);
  EXPECT_EQ(limit(1), 1);
  EXPECT_EQ(limit(kLongestLimitMs), kLongestLimitMs);
  EXPECT_EQ(limit(kLongestLimitMs + 1), -1);
  // Nine million million seconds in nanoseconds would be negative: "lost at once".
  EXPECT_EQ(limit(std::numeric_limits<int64_t>::max()), -1);
}

TEST_F(WaitTest, EndsWhenTheGroupIsAborted) {
  Wait w = wait();
  w.look(begin);
  comm.abort();
  EXPECT_EQ(transport.aborted_with, -1) << "the others were not told";
  const Error aborted = thrown_by([&] { w.look(begin); });
  EXPECT_EQ(aborted.status, LASP_ERROR_ABORTED);
  EXPECT_EQ(
      aborted.sentence,
      "the group was aborted while rank 1 (scripted transport) was waiting for a state in lasp_forward, peer 2");
}

TEST_F(WaitTest, WarnsAfterFiveSecondsAndThenEveryThirty) {
  Lines lines;
  policy.log = Log(LASP_LOG_WARNING, Lines::write, &lines);
  Wait w = wait();
  for (int ms = 0; ms <= 70'000; ms += 50) w.look(begin + milliseconds(ms));
  EXPECT_EQ(lines.texts, (std::vector<std::string>{
                             "1 rank 1 has waited 5 s for rank 2 in lasp_forward (waiting for a state)",
                             "1 rank 1 has waited 35 s for rank 2 in lasp_forward (waiting for a state)",
                             "1 rank 1 has waited 65 s for rank 2 in lasp_forward (waiting for a state)"}));
  Lines silent;
  policy.log = Log(LASP_LOG_OFF, Lines::write, &silent);
  Wait quiet = wait();
  quiet.look(begin + seconds(50));
  EXPECT_TRUE(silent.texts.empty());
}

TEST_F(WaitTest, AsksTheCallerTenTimesASecond) {
  Questions questions;
  policy.interrupted = Questions::answer;
  policy.interrupted_user = &questions;
  Wait w = wait();
  for (int us = 0; us < 99'900; us += 100) w.look(begin + std::chrono::microseconds(us));
  EXPECT_EQ(questions.asked, 0) << "a short wait asks nobody";
  for (int ms = 100; ms < 1100; ++ms) w.look(begin + milliseconds(ms));
  EXPECT_EQ(questions.asked, 10);
  EXPECT_EQ(transport.aborts, 0);
}

TEST_F(WaitTest, EndsWhenTheCallerSaysSo) {
  Questions questions{0, 3};
  policy.interrupted = Questions::answer;
  policy.interrupted_user = &questions;
  Wait w = wait();
  w.look(begin + milliseconds(100));
  w.look(begin + milliseconds(200));
  const Error ended = thrown_by([&] { w.look(begin + milliseconds(300)); });
  EXPECT_EQ(ended.status, LASP_ERROR_ABORTED);
  EXPECT_NE(ended.sentence.find("the caller's own function"), std::string::npos) << ended.sentence;
  EXPECT_EQ(transport.aborted_with, -1) << "as lasp_context_abort";
  EXPECT_NE(thrown_by([&] { comm.require_usable(); }).sentence.find(ended.sentence), std::string::npos);
}

// ---- How a comm waits ----

class CommWait : public WaitTest {
 protected:
  static constexpr int kRounds = 4;
  // Not done for so many times that it is asked.
  void done_after(int questions) {
    transport.done = [this, left = questions]() mutable { return left-- <= 0; };
  }
  Error wait_on(Comm &on) {
    return thrown_by([&] { on.wait(nullptr, policy, "waiting for a state", 2); });
  }
};

TEST_F(CommWait, IsOneCallWhereTheMessageHasCome) {
  EXPECT_EQ(wait_on(comm).status, LASP_OK);
  EXPECT_EQ(transport.slices, 1);
  EXPECT_EQ(transport.waits + transport.tests, 0);
}

TEST_F(CommWait, LooksBetweenSlices) {
  Questions questions;
  policy.interrupted = Questions::answer;
  policy.interrupted_user = &questions;
  done_after(3);
  EXPECT_EQ(wait_on(comm).status, LASP_OK);
  EXPECT_EQ(transport.slices, 4);
  EXPECT_EQ(questions.asked, 3);
  EXPECT_GT(comm.traffic().wait_seconds, 0.29) << "three slices of 100 ms";
}

TEST_F(CommWait, AtTheLimitTheTransportFindsWhoIsLost) {
  policy.limit_ms = 150;
  done_after(1'000'000);
  transport.wait_answers = LASP_ERROR_PEER_LOST;
  transport.lost_rank = 0;
  const Error late = wait_on(comm);
  EXPECT_EQ(late.status, LASP_ERROR_PEER_LOST);
  EXPECT_EQ(transport.slices, 1);
  EXPECT_EQ(transport.waits, 1);
  EXPECT_GT(transport.last_limit_ms, 0);
  EXPECT_LE(transport.last_limit_ms, 50) << "what is left of the limit";
  EXPECT_EQ(transport.aborted_with, 0);
}

// Without the help of the transport, whose table has no `abort`.
TEST_F(CommWait, IsEndedByAnAbortThatTheTransportDoesNotKnow) {
  lasp_transport table = transport.table(true);
  table.abort = nullptr;
  Comm deaf(table, &transport);
  std::atomic<bool> waiting{false};
  transport.done = [&] {
    waiting = true;
    return false;
  };
  std::thread aborter([&] {
    while (!waiting) std::this_thread::yield();
    deaf.abort();
  });
  policy.limit_ms = 20'000;
  const auto start = Wait::Clock::now();
  EXPECT_EQ(wait_on(deaf).status, LASP_ERROR_ABORTED);
  EXPECT_LT(Wait::Clock::now() - start, seconds(10));
  aborter.join();
}

TEST_F(CommWait, WithoutWaitForIsOneWaitForTheWholeLimit) {
  Comm plain(transport.table(false), &transport);
  for (const int64_t limit_ms : {int64_t{-1}, int64_t{60'000}}) {
    policy.limit_ms = limit_ms;
    EXPECT_EQ(wait_on(plain).status, LASP_OK);
    EXPECT_EQ(transport.last_limit_ms, limit_ms);
  }
  EXPECT_EQ(transport.waits, 2);
  EXPECT_EQ(transport.tests, 0);
}

TEST_F(CommWait, AFailedSliceEndsIt) {
  transport.wait_for_answers = 12345;
  const Error error = wait_on(comm);
  EXPECT_EQ(error.status, LASP_ERROR_TRANSPORT);
  EXPECT_EQ(
      error.sentence,
      "the scripted transport failed (status 12345) while rank 1 (scripted transport) was waiting for a state in "
      "lasp_forward, peer 2");
  EXPECT_EQ(transport.waits, 0);
}

// Before the limit, and with nothing known of the rank, the sentence says no more than the transport did.
TEST_F(CommWait, ARankLostBeforeTheLimitIsNotCalledLate) {
  policy.limit_ms = 60'000;
  transport.wait_for_answers = LASP_ERROR_PEER_LOST;
  transport.lost_rank = 0;
  const std::string sentence = wait_on(comm).sentence;
  EXPECT_EQ(sentence.find("time limit"), std::string::npos) << sentence;
  EXPECT_NE(sentence.find("rank 0 did not come, as the scripted transport said after 0 ms"), std::string::npos)
      << sentence;
}

// Two ranks that wait for each other in the same call have lost a message; in two calls they are out of step.
TEST_F(CommWait, OnlyAnotherCallIsOutOfStep) {
  transport.wait_for_answers = LASP_ERROR_PEER_LOST;
  transport.lost_rank = 2;
  transport.peer_is = LASP_PEER_WAITS;
  OperationNumbers operations;
  for (const OperationKind kind : {OperationKind::kForward, OperationKind::kBackward}) {
    Comm fresh(transport.table(true), &transport);
    fresh.enter("lasp_forward");
    transport.peer_waits_for_tag = tag_of(operations.next(kind), kTagRight);
    const std::string sentence = wait_on(fresh).sentence;
    EXPECT_EQ(sentence.find("rank 2 is in lasp_backward, this rank in lasp_forward") != std::string::npos,
              kind == OperationKind::kBackward)
        << sentence;
    EXPECT_EQ(sentence.find("same order") != std::string::npos, kind == OperationKind::kBackward) << sentence;
  }
}

}  // namespace
}  // namespace lasp
