// Exact cases: whatever the number of ranks, the split and the schedule, the very same numbers come out, because
// every sum in them is exact in float32. (Cases and Vectors hold each to the oracle; here they are held to each
// other, and the 16-bit results with them.)
#include <gtest/gtest.h>

#include "support/group_params.h"
#include "support/measure.h"
#include "support/vectors.h"

namespace lasp_test {
namespace {

void expect_equal_everywhere(Case c, const CaseData &data) {
  const Outputs one = run_case(c, data, Transport::self, 1, {});
  ASSERT_EQ(one.complaints, "");
  for (const Split split : {Split::ragged, Split::sparse_reversed}) {
    c.split = split;
    for (const GroupSize &group : thread_groups()) {
      for (const int32_t schedule : schedules_of(c)) {
        RunOptions options;
        options.schedule = schedule;
        const Outputs out = run_case(c, data, group.transport, group.nranks, options);
        ASSERT_EQ(out.complaints, "") << group_name(group, schedule);
        for (int id = 0; id < kTensors; ++id) {
          if (id == kDDecay && c.decay == LASP_DECAY_HEAD) continue;  // more bits than float32 has: not exact
          EXPECT_EQ(out.tensors[id], one.tensors[id])
              << c.name << " " << kTensorNames[id] << " " << group_name(group, schedule);
        }
      }
    }
  }
}

class Exact : public testing::TestWithParam<Case> {};
TEST_P(Exact, SameForEveryGroupSplitAndSchedule) { expect_equal_everywhere(GetParam(), cached_data(GetParam())); }

std::vector<Case> exact_cases() {
  std::vector<Case> cases;
  for (const Case &c : all_cases()) {
    if (c.exact) cases.push_back(c);
  }
  return cases;
}
INSTANTIATE_TEST_SUITE_P(Table, Exact, testing::ValuesIn(exact_cases()),
                         [](const auto &test) { return test.param.name; });

TEST(ExactVectors, SameForEveryGroupSplitAndSchedule) {
  int exact = 0;
  for (const Vector &vector : all_vectors()) {
    if (!vector.problem.exact) continue;
    ++exact;
    expect_equal_everywhere(vector.problem, vector.data);
  }
  EXPECT_EQ(exact, 2);
}

}  // namespace
}  // namespace lasp_test
