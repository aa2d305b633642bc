// What happens to a rank while it waits: its caller is asked, another thread may end it, the log hears of it. Every
// answer comes long before the time limit, and a test ends with its first failure.
#include <gtest/gtest.h>

#include <chrono>
#include <limits>

#include "small_group.h"

namespace {

using namespace lasp_test;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr int64_t kLongMs = 30'000;
constexpr auto kAnswered = seconds(15);  // half of it, and far above what a busy machine needs

using Call = Result (*)(Rank &);
const Call kCalls[] = {[](Rank &rank) { return rank.plan(LASP_SCHEDULE_RING, true); },
                       [](Rank &rank) { return rank.forward(); }, [](Rank &rank) { return rank.backward(); }};

// Rank 0 is alone in each of the collective calls, and its caller ends it at the third question.
TEST(Interrupted, EndsAnyCallThatWaits) {
  const std::string names[] = {"lasp_plan_create", "lasp_forward", "lasp_backward"};
  for (int call = 0; call < 3 && !HasFailure(); ++call) {
    SCOPED_TRACE(names[call]);
    Caller caller;
    Group group(2, kLongMs, caller.options());
    for (int before = 0; before < call; ++before) expect_all_ok(group.run(kCalls[before]));
    caller.asked = 0;
    caller.yes_at = 3;
    caller.thread = std::this_thread::get_id();
    const auto start = Clock::now();
    const Result ended = kCalls[call](*group.ranks[0]);
    EXPECT_LT(Clock::now() - start, kAnswered);
    EXPECT_GE(Clock::now() - start, milliseconds(300)) << "asked about ten times a second";
    EXPECT_EQ(ended.status, LASP_ERROR_ABORTED);
    EXPECT_TRUE(contains(ended.sentence, "the caller's own function (options.interrupted)")) << ended.sentence;
    EXPECT_TRUE(contains(ended.sentence, "in " + names[call])) << ended.sentence;
    EXPECT_EQ(caller.asked, 3);
    EXPECT_FALSE(caller.other_thread) << "asked on another thread than the caller's";
    EXPECT_EQ(group.ranks[0]->async_error(), LASP_ERROR_ABORTED);
    // As by lasp_context_abort: the others are told, and later calls say why.
    EXPECT_EQ(kCalls[call](*group.ranks[1]).status, LASP_ERROR_ABORTED);
    EXPECT_TRUE(contains(kCalls[call](*group.ranks[0]).sentence, ended.sentence));
  }
}

TEST(Interrupted, IsNotAskedInACallThatDoesNotWait) {
  Caller caller;
  caller.yes_at = 1;
  Group group(1, kLongMs, caller.options());
  for (const Call call : kCalls) expect_all_ok(group.run(call));
  EXPECT_EQ(caller.asked, 0);
}

TEST(Interrupted, NoDoesNotDisturbTheCall) {
  Caller caller;
  Group group(2, kLongMs, caller.options());
  expect_all_ok(group.run(kCalls[0]));
  Result first;
  std::thread early([&] { first = group.ranks[1]->forward(); });
  while (caller.asked < 3) std::this_thread::yield();  // rank 1 is deep in its wait
  expect_all_ok({group.ranks[0]->forward()});
  early.join();
  expect_all_ok({first});
}

// A limit that is multiplied into another unit somewhere overflows, and is over at once.
TEST(TimeLimit, TheLargestNumberIsNoLimit) {
  Caller caller;
  Group group(2, std::numeric_limits<int64_t>::max(), caller.options());
  expect_all_ok(group.run(kCalls[0]));
  Result first;
  std::thread early([&] { first = group.ranks[1]->forward(); });
  while (caller.asked < 2) std::this_thread::yield();
  expect_all_ok({group.ranks[0]->forward()});
  early.join();
  expect_all_ok({first});
}

// The one wait of this length in the suite: the times of later warnings are tests/unit/comm/wait_test.cpp's.
TEST(Log, WarnsOfALongWait) {
  Lines lines;
  Group group(2, 5200, lines.options(LASP_LOG_WARNING));
  expect_all_ok(group.run(kCalls[0]));
  EXPECT_EQ(group.ranks[1]->forward().status, LASP_ERROR_PEER_LOST);
  ASSERT_EQ(lines.texts.size(), 1u);
  const std::string begin = "1 rank 1 has waited ", end = " s for rank 0 in lasp_forward (waiting for a state)";
  EXPECT_EQ(lines.texts[0].substr(0, begin.size()), begin);
  EXPECT_TRUE(contains(lines.texts[0], end)) << lines.texts[0];
  EXPECT_GE(std::stoi(lines.texts[0].substr(begin.size())), 5);
}

}  // namespace
