// What the device mode decides without a device: when an exchange counts as lost, and which devices the compiled
// code serves.
#include <gtest/gtest.h>

#include <set>
#include <utility>

#include "exchange/exchange_watch.h"

#ifdef LASP_HAVE_CUDA
#include "cuda/device/device.h"
#endif

namespace lasp {
namespace {

using std::chrono::milliseconds;

struct Stream {
  std::set<std::pair<int32_t, bool>> passed;
  void begin(int32_t slot) { passed.insert({slot, false}); }
  void end(int32_t slot) { passed.insert({slot, true}); }
  void reuse(int32_t slot) { passed.erase({slot, false}), passed.erase({slot, true}); }
  bool operator()(int32_t slot, bool end) const { return passed.contains({slot, end}); }
};

TEST(ExchangeWatch, OnlyWhatBeganIsLate) {
  ExchangeWatch watch;
  Stream stream;
  const ExchangeWatch::Clock::time_point start{};
  const int32_t slot = watch.open(3);
  EXPECT_FALSE(watch.poll(start, milliseconds(10), stream));
  EXPECT_FALSE(watch.poll(start + milliseconds(1000), milliseconds(10), stream)) << "own work comes before it";
  stream.begin(slot);
  EXPECT_FALSE(watch.poll(start + milliseconds(2000), milliseconds(10), stream)) << "first seen to run just now";
  EXPECT_FALSE(watch.poll(start + milliseconds(2010), milliseconds(10), stream));
  EXPECT_EQ(watch.poll(start + milliseconds(2011), milliseconds(10), stream), 3);
  EXPECT_FALSE(watch.poll(start + milliseconds(90000), milliseconds(-1), stream)) << "no limit";
  stream.end(slot);
  EXPECT_FALSE(watch.poll(start + milliseconds(2012), milliseconds(10), stream));
}

TEST(ExchangeWatch, FollowsTheOldestThroughMoreThanItHolds) {
  ExchangeWatch watch;
  Stream stream;
  const ExchangeWatch::Clock::time_point start{};
  std::vector<int32_t> slots;
  for (int32_t i = 0; i < ExchangeWatch::kSlots; ++i) slots.push_back(watch.open(i));
  EXPECT_EQ(watch.open(99), -1) << "full";
  for (int32_t i = 0; i < 10; ++i)
    stream.begin(slots[static_cast<size_t>(i)]), stream.end(slots[static_cast<size_t>(i)]);
  EXPECT_FALSE(watch.poll(start, milliseconds(10), stream));
  const int32_t again = watch.open(40);
  EXPECT_EQ(again, slots[0]) << "a place that became free";
  stream.reuse(again);
  stream.begin(slots[10]);
  EXPECT_FALSE(watch.poll(start + milliseconds(5), milliseconds(10), stream));
  EXPECT_EQ(watch.poll(start + milliseconds(16), milliseconds(10), stream), 10);
  watch.drop();
  EXPECT_EQ(watch.open(41), again) << "the dropped place is used again";
}

#ifdef LASP_HAVE_CUDA
TEST(Architectures, ServeWhatTheirCodeRunsOn) {
  constexpr std::string_view kMachineCode = "80-real;90a-real;100-real;120-real";
  EXPECT_FALSE(architecture_served(kMachineCode, 75));
  EXPECT_TRUE(architecture_served(kMachineCode, 80));
  EXPECT_TRUE(architecture_served(kMachineCode, 86)) << "a later minor version runs the code of an earlier one";
  EXPECT_TRUE(architecture_served(kMachineCode, 90));
  EXPECT_TRUE(architecture_served(kMachineCode, 103));
  EXPECT_FALSE(architecture_served(kMachineCode, 110));
  EXPECT_TRUE(architecture_served("90a-real;80-virtual", 110)) << "by the driver's compiler";
  EXPECT_FALSE(architecture_served("90a-real", 91)) << "90a is for 9.0 alone";
  EXPECT_TRUE(architecture_served("100f-real", 103));
  EXPECT_TRUE(architecture_served("80", 120));
  EXPECT_FALSE(architecture_served("", 90));
}
#endif

}  // namespace
}  // namespace lasp
