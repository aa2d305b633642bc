// A thread that watches others compute: it sees what breaks, disturbs nothing, and can end a job that hangs.
#include <gtest/gtest.h>

#include <chrono>

#include "small_group.h"

namespace {

using namespace lasp_test;
using Clock = std::chrono::steady_clock;

// Asks all contexts again and again until it is told to end.
class Watchdog {
 public:
  explicit Watchdog(Group &group) : thread_([this, &group] { watch(group); }) {}
  ~Watchdog() { end(); }
  void end() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
  }
  int64_t asked = 0;
  std::vector<std::string> found;  // by rank; "" while all is well
  std::string refused;

 private:
  void watch(Group &group) {
    found.resize(group.ranks.size());
    while (!stop_) {
      for (size_t r = 0; r < group.ranks.size(); ++r) {
        lasp_status status = LASP_OK;
        char text[512] = "";
        if (lasp_context_get_async_error(group.ranks[r]->context(), &status, text, sizeof text) != LASP_OK)
          refused = lasp_last_error();
        if (status != LASP_OK) found[r] = text;
        ++asked;
      }
    }
  }
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

// None of the calls is refused because somebody asked at the same time, as a second thread in a call would be.
TEST(Watching, DisturbsNoCall) {
  Group group(2, 30'000);
  expect_all_ok(group.run([](Rank &rank) { return rank.plan(LASP_SCHEDULE_RING); }));
  expect_all_ok(group.run([](Rank &rank) { return rank.halo(3); }));
  Watchdog dog(group);
  const auto results = group.run([](Rank &rank) {
    for (int i = 0; i < 300; ++i)
      for (const Result &result : {rank.forward(), rank.backward(), rank.halo_forward(), rank.halo_backward()})
        if (result.status != LASP_OK) return result;
    return Result{LASP_OK, ""};
  });
  dog.end();
  expect_all_ok(results);
  EXPECT_GT(dog.asked, 0);
  EXPECT_EQ(dog.refused, "");
  for (const std::string &found : dog.found) EXPECT_EQ(found, "");
}

TEST(Watching, SeesWhyTheGroupBroke) {
  Group group(2, 300);
  expect_all_ok(group.run([](Rank &rank) { return rank.plan(LASP_SCHEDULE_RING); }));
  Watchdog dog(group);
  const auto results = group.run([](Rank &rank) { return rank.forward(); }, 0);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  dog.end();
  EXPECT_TRUE(contains(dog.found[1], results[1].sentence)) << dog.found[1];
}

// No limit, and a rank that never comes: the other waits until a thread of the program's own ends the job.
TEST(Watching, AnAbortFromTheWatchingThreadEndsAWaitWithoutALimit) {
  Group group(2, -1);
  expect_all_ok(group.run([](Rank &rank) { return rank.plan(LASP_SCHEDULE_RING); }));
  expect_all_ok(group.run([](Rank &rank) { return rank.halo(3); }));
  std::atomic<bool> done{false};
  Result result;
  std::thread waiting([&] {
    result = group.ranks[1]->halo_forward();
    done = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_FALSE(done);
  const auto begin = Clock::now();
  EXPECT_EQ(lasp_context_abort(group.ranks[1]->context()), LASP_OK);
  waiting.join();
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(2));
  EXPECT_EQ(result.status, LASP_ERROR_ABORTED) << result.sentence;
  EXPECT_TRUE(contains(result.sentence, "was exchanging a halo in lasp_halo_forward, peer 0")) << result.sentence;
  EXPECT_EQ(group.ranks[0]->halo_forward().status, LASP_ERROR_ABORTED) << "the others are told";
}

}  // namespace
