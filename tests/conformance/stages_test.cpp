// The stages of a pass, with a collective of the test's own between them, give the bits of lasp_forward and
// lasp_backward by the schedule all-gather: for every decay and split, on ranks that are threads, and on detached
// comms whose ranks are played one after the other.
#include <gtest/gtest.h>

#include <barrier>
#include <cstring>

#include "support/group_params.h"
#include "support/measure.h"
#include "support/played_ranks.h"

namespace lasp_test {
namespace {

// An all-gather between the threads of a group.
class ThreadGather {
 public:
  explicit ThreadGather(int32_t nranks) : nranks_(static_cast<size_t>(nranks)), meet_(nranks) {}
  void operator()(int32_t rank, const void *own, void *all, size_t bytes) {
    if (rank == 0) maps_.resize(nranks_ * bytes);
    meet_.arrive_and_wait();
    std::memcpy(maps_.data() + static_cast<size_t>(rank) * bytes, own, bytes);
    meet_.arrive_and_wait();
    std::memcpy(all, maps_.data(), maps_.size());
    meet_.arrive_and_wait();
  }

 private:
  const size_t nranks_;
  std::barrier<> meet_;
  std::vector<uint8_t> maps_;
};

std::vector<Case> staged_cases() {
  std::vector<Case> cases;
  for (Case c : all_cases()) {
    if (c.mask == LASP_MASK_BIDIRECTIONAL || c.segment > 0) continue;
    if (on_cuda() && !c.aligned && c.name.find("wide") != std::string::npos) continue;  // refused: MISALIGNED
    c.broadcast = false;
    cases.push_back(c);
  }
  return cases;
}

// Three ranks for each case, and another number in turn.
std::vector<int32_t> staged_groups(const Case &c) {
  if (whole_run()) return {1, 2, 3, 4, 5};
  constexpr int32_t kOthers[] = {1, 2, 4, 5};
  return {3, quick_run() ? 1 : kOthers[turn(c, std::size(kOthers))]};
}

void expect_same_bits(const std::vector<float> &a, const std::vector<float> &b, const std::string &what) {
  ASSERT_EQ(a.size(), b.size()) << what;
  EXPECT_TRUE(a.empty() || std::memcmp(a.data(), b.data(), 4 * a.size()) == 0) << what;
}

Outputs by_all_gather(const Case &c, const CaseData &data, int32_t nranks) {
  RunOptions options;
  options.schedule = LASP_SCHEDULE_ALL_GATHER;
  return run_case(c, data, Transport::threads, nranks, options);
}

class Stages : public testing::TestWithParam<Case> {};

TEST_P(Stages, GiveTheBitsOfTheScheduleAllGather) {
  const Case &c = GetParam();
  const CaseData &data = cached_data(c);
  for (const int32_t nranks : staged_groups(c)) {
    const Outputs whole = by_all_gather(c, data, nranks);
    ASSERT_EQ(whole.complaints, "");
    for (const bool carry : {true, false}) {
      SCOPED_TRACE(testing::Message() << nranks << " ranks, " << (carry ? "with" : "without") << " carry");
      ThreadGather gather(nranks);
      RunOptions options;
      options.schedule = LASP_SCHEDULE_ALL_GATHER;
      options.all_gather = std::ref(gather);
      options.carry = carry;
      options.recompute = carry;
      const Outputs staged = run_case(c, data, Transport::threads, nranks, options);
      ASSERT_EQ(staged.complaints, "");
      for (size_t rank = 0; rank < staged.ranks.size(); ++rank)
        for (int id = 0; id < kTensors; ++id)
          expect_same_bits(staged.ranks[rank].tensors[id], whole.ranks[rank].tensors[id],
                           std::string(kTensorNames[id]) + " on rank " + std::to_string(rank));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Table, Stages, testing::ValuesIn(staged_cases()),
                         [](const auto &test) { return test.param.name; });

}  // namespace
}  // namespace lasp_test
