// When an exchange that a graph replays counts as lost, by the counts that the graph keeps.
#include "exchange/replay_watch.h"

#include <gtest/gtest.h>

namespace lasp {
namespace {

using std::chrono::milliseconds;

const ReplayWatch::Clock::time_point kStart{};
constexpr milliseconds kLimit{10};

TEST(ReplayWatch, OnlyWhatRunsForLongIsLate) {
  ReplayWatch watch;
  EXPECT_FALSE(watch.poll(kStart, kLimit, 0, 0));
  EXPECT_FALSE(watch.poll(kStart + milliseconds(5000), kLimit, 1, 0)) << "first seen to run just now";
  EXPECT_FALSE(watch.poll(kStart + milliseconds(5010), kLimit, 1, 0));
  EXPECT_TRUE(watch.poll(kStart + milliseconds(5011), kLimit, 1, 0));
  EXPECT_FALSE(watch.poll(kStart + milliseconds(90000), milliseconds(-1), 1, 0)) << "no limit";
  EXPECT_FALSE(watch.poll(kStart + milliseconds(90001), kLimit, 1, 1)) << "it has ended after all";
}

TEST(ReplayWatch, ReplayAfterReplayIsNotOneThatLasts) {
  ReplayWatch watch;
  uint32_t n = 0;
  for (int64_t ms = 0; ms < 1000; ms += 8, ++n)
    ASSERT_FALSE(watch.poll(kStart + milliseconds(ms), kLimit, n + 1, n)) << "one runs whenever it is looked at";
  EXPECT_FALSE(watch.poll(kStart + milliseconds(2000), kLimit, n, n));
  EXPECT_FALSE(watch.poll(kStart + milliseconds(9000), kLimit, n + 1, n)) << "what went before it has ended";
  EXPECT_FALSE(watch.poll(kStart + milliseconds(9010), kLimit, n + 1, n));
  EXPECT_TRUE(watch.poll(kStart + milliseconds(9011), kLimit, n + 1, n));
}

// Of two graphs that run at once one goes on.
TEST(ReplayWatch, SomeEndIsEnough) {
  ReplayWatch watch;
  for (uint32_t n = 0; n < 100; ++n) ASSERT_FALSE(watch.poll(kStart + milliseconds(8 * n), kLimit, n + 2, n));
}

TEST(ReplayWatch, CountsWrap) {
  ReplayWatch watch;
  EXPECT_FALSE(watch.poll(kStart, kLimit, 0, ~uint32_t{0}));
  EXPECT_TRUE(watch.poll(kStart + milliseconds(11), kLimit, 0, ~uint32_t{0}));
  EXPECT_FALSE(watch.poll(kStart + milliseconds(12), kLimit, 0, 0));
}

}  // namespace
}  // namespace lasp
