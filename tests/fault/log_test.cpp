// What a context says of its work to the log that it is given, and at which level. Warnings of long waits:
// waiting_test.cpp.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>

#include "small_group.h"

namespace {

using namespace lasp_test;

// Which levels write which lines.
std::vector<std::string> lines_of_a_pass(int32_t level) {
  unsetenv("LASP_TRACE");  // with it a context says one line more
  Lines lines;
  {
    Group group(2, 60'000, lines.options(level));
    expect_all_ok(group.run([](Rank &rank) { return rank.plan(LASP_SCHEDULE_RING, true); }));
    expect_all_ok(group.run([](Rank &rank) { return rank.forward(); }));
    expect_all_ok(group.run([](Rank &rank) { return rank.backward(); }));
  }
  std::sort(lines.texts.begin(), lines.texts.end());
  return lines.texts;
}

TEST(Log, LevelsFilter) {
  EXPECT_EQ(lines_of_a_pass(LASP_LOG_OFF), std::vector<std::string>{});
  EXPECT_EQ(lines_of_a_pass(LASP_LOG_WARNING), std::vector<std::string>{});
  const auto info = lines_of_a_pass(LASP_LOG_INFO);
  ASSERT_EQ(info.size(), 4u);
  for (size_t r = 0; r < 2; ++r) {
    EXPECT_TRUE(contains(info[r], "2 context: rank " + std::to_string(r) + " of 2 over threads")) << info[r];
    const std::string &plan = info[2 + r];
    EXPECT_TRUE(contains(plan, "2 plan: rank " + std::to_string(r) + " of 2: B 1, T 20 of 40 from")) << plan;
    for (const char *part : {"heads 2/2/2", "K 8", "V 8", "float32", "schedule ring (asked for by the problem)",
                             "chunks of 128 tokens, ", " products, ", "workspace forward", "state cache"})
      EXPECT_TRUE(contains(plan, part)) << part << " is not in: " << plan;
    EXPECT_FALSE(contains(plan, "\n")) << plan;
  }
}

TEST(Log, TellsEachExchangeWithCallNumberBytesPeersAndTime) {
  const auto debug = lines_of_a_pass(LASP_LOG_DEBUG);
  // A state of [2, 8, 8] floats has 512 bytes; the ring sends it right in forward, left in backward.
  const std::string expected[] = {
      "3 exchange 0 in lasp_plan_create, rank 0: problems, ",
      "3 exchange 0 in lasp_plan_create, rank 1: problems, ",
      "3 exchange 1 in lasp_forward, rank 0: states, 512 bytes sent to [1], 0 received from [], took ",
      "3 exchange 1 in lasp_forward, rank 1: states, 0 bytes sent to [], 512 received from [0], took ",
      "3 exchange 2 in lasp_forward, rank 0: final states, 0 bytes sent to [], 512 received from [1], took ",
      "3 exchange 2 in lasp_forward, rank 1: final states, 512 bytes sent to [0], 0 received from [], took ",
      "3 exchange 3 in lasp_backward, rank 0: states, 0 bytes sent to [], 512 received from [1], took ",
      "3 exchange 3 in lasp_backward, rank 1: states, 512 bytes sent to [0], 0 received from [], took "};
  ASSERT_EQ(debug.size(), 4 + std::size(expected));
  for (size_t i = 0; i < std::size(expected); ++i) {
    const std::string &line = debug[4 + i];
    EXPECT_EQ(line.substr(0, expected[i].size()), expected[i]);
    EXPECT_TRUE(contains(line, " us, waited ")) << line;
  }
}

}  // namespace
