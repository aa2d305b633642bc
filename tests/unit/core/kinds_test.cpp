// That the lists which tests go through have everything that the library has.
#include "support/kinds.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "core/names.h"
#include "core/schedules.h"
#include "unit/decays.h"

namespace lasp {
namespace {

TEST(Kinds, EverySchedule) {
  EXPECT_EQ(std::size(lasp_test::kSchedulesAndRelay), kSchedules.size());
  for (const ScheduleEntry &each : kSchedules) {
    EXPECT_NE(std::ranges::find(lasp_test::kSchedulesAndRelay, each.value), std::end(lasp_test::kSchedulesAndRelay))
        << each.name;
    EXPECT_EQ(each.waits, std::ranges::find(lasp_test::kSchedules, each.value) == std::end(lasp_test::kSchedules))
        << each.name;
  }
}

// A decay that the library names is in both lists.
TEST(Kinds, EveryDecay) {
  int32_t named = 0;
  while (decay_name(named).starts_with("LASP_DECAY_")) ++named;
  EXPECT_EQ(std::ssize(kDecays), named);
  EXPECT_TRUE(std::ranges::equal(kDecays, lasp_test::kDecays,
                                 [](Decay ours, int32_t theirs) { return static_cast<int32_t>(ours) == theirs; }));
}

}  // namespace
}  // namespace lasp
