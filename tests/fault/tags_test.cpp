// The tags of messages: within what MPI promises however many calls are made, and never the same for ranks whose
// calls were once out of step, which must wait in vain rather than take one message for another.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <set>
#include <thread>

#include "small_rank.h"
#include "support/mailboxes.h"
#include "support/observed_transport.h"

namespace {

using lasp_test::Mailboxes;
using lasp_test::ObservedEnd;
using lasp_test::Rank;
using lasp_test::Result;

// Two ranks over mailboxes, whose sends are done at once: a rank that only sends goes on whatever the other does.
class Pair {
 public:
  explicit Pair(int64_t time_limit_ms) {
    for (int32_t r = 0; r < 2; ++r) {
      ends[r] = std::make_unique<ObservedEnd>(boxes_.table(r), boxes_.user(r));
      const lasp_transport table = ends[r]->table();
      lasp_comm *comm = nullptr;
      EXPECT_EQ(lasp_comm_create_custom(&table, ends[r].get(), &comm), LASP_OK) << lasp_last_error();
      ranks[r] = std::make_unique<Rank>(comm, time_limit_ms);
    }
    both([](Rank &rank) { return rank.plan(LASP_SCHEDULE_RING); });
  }
  // What each rank's call answers; calls may differ.
  template <class First, class Second>
  std::pair<Result, Result> run(First first, Second second) {
    std::pair<Result, Result> results;
    std::thread other([&] { results.second = second(*ranks[1]); });
    results.first = first(*ranks[0]);
    other.join();
    return results;
  }
  template <class Call>
  void both(Call call) {
    const auto [first, second] = run(call, call);
    ASSERT_EQ(first.status, LASP_OK) << first.sentence;
    ASSERT_EQ(second.status, LASP_OK) << second.sentence;
  }

 private:
  Mailboxes boxes_{2};

 public:
  std::unique_ptr<ObservedEnd> ends[2];
  std::unique_ptr<Rank> ranks[2];
};

const auto kForward = [](Rank &rank) { return rank.forward(); };
const auto kBackward = [](Rank &rank) { return rank.backward(); };

TEST(Tags, StayWithinWhatMpiPromises) {
  Pair pair(60'000);
  for (int i = 0; i < 700; ++i) {  // 1400 operations
    pair.both(kForward);
    pair.both(kBackward);
    if (HasFatalFailure()) return;
  }
  for (const auto &end : pair.ends) {
    const auto [least, most] = std::minmax_element(end->tags.begin(), end->tags.end());
    EXPECT_GE(*least, 0);
    EXPECT_LE(*most, 32767);
  }
}

TEST(Tags, OfNeighbouringCallsDiffer) {
  Pair pair(60'000);
  const std::vector<int32_t> &tags = pair.ends[0]->tags;
  std::set<int32_t> before(tags.begin(), tags.end());
  for (int i = 0; i < 30; ++i) {
    const size_t begin = tags.size();
    if (i % 3 == 2) {
      pair.both(kBackward);
    } else {
      pair.both(kForward);
    }
    const std::set<int32_t> now(tags.begin() + static_cast<std::ptrdiff_t>(begin), tags.end());
    for (const int32_t tag : now)
      EXPECT_EQ(before.count(tag), 0u) << "call " << i << " has a tag of the call before it";
    before = now;
  }
}

// Rank 0 called forward where rank 1 called backward, and neither had anything to wait for. From then on both call
// the same, and yet no message of the one is taken by the other.
TEST(Tags, RemembersCallsThatWereOutOfStep) {
  Pair pair(300);
  pair.both(kForward);
  const auto [first, second] = pair.run(kForward, kBackward);
  lasp_status worst = std::max(first.status, second.status);
  for (int i = 0; i < 3 && worst < 500; ++i) {
    const auto again = pair.run(kForward, kForward);
    worst = std::max(again.first.status, again.second.status);
    EXPECT_GE(again.second.status, 500) << "rank 1 took a message of another place in the order of calls";
  }
  EXPECT_GE(worst, 500);
}

}  // namespace
