// The case table and the given vectors over NCCL with more ranks than GPUs, on hosts that only NCCL takes for
// several.
#include <gtest/gtest.h>

#include "gpu/nccl_cases.h"
#include "gpu/nccl_processes.h"
#include "support/group_params.h"
#include "support/vectors.h"

namespace lasp_test {
namespace {

class NcclProcess : public testing::Test {
 protected:
  // What ended the group has failed the test that it ended in.
  void SetUp() override {
    if (const std::string &reason = nccl_processes().why_ended(); !reason.empty()) GTEST_SKIP() << reason;
  }

  void run_by_all_schedules(const Case &c, bool stored, const Expected &expected, RunOptions options) {
    for (const int32_t schedule : schedules_of(c)) {
      options.schedule = schedule;
      const Outputs out = nccl_processes().run(c, stored, options);
      expect_right(c, expected, out, c.name + " by " + schedule_name(schedule));
    }
  }
};

class NcclProcessCases : public NcclProcess, public testing::WithParamInterface<Case> {};
TEST_P(NcclProcessCases, MatchOracle) {
  RunOptions options;
  options.recompute = true;
  run_by_all_schedules(GetParam(), false, cached_expected(GetParam()), options);
}
INSTANTIATE_TEST_SUITE_P(Table, NcclProcessCases, testing::ValuesIn(all_cases()),
                         [](const auto &test) { return test.param.name; });

class NcclProcessVectors : public NcclProcess, public testing::WithParamInterface<size_t> {};
TEST_P(NcclProcessVectors, MatchStoredResults) {
  const Vector &vector = all_vectors()[GetParam()];
  run_by_all_schedules(vector.problem, true, vector.expected, {});
}
INSTANTIATE_TEST_SUITE_P(Given, NcclProcessVectors, testing::Range(size_t{0}, all_vectors().size()),
                         [](const auto &test) { return all_vectors()[test.param].problem.name; });

TEST_F(NcclProcess, GraphReplayHasTheBitsOfTheEagerPasses) {
  RunOptions options;
  options.graph_replays = 3;
  for (const char *name : kChosen) {
    const Case &c = case_named(name);
    run_by_all_schedules(c, false, cached_expected(c), options);
  }
}

TEST_F(NcclProcess, SameBitsFromRunToRun) {
  for (const char *name : kChosen) {
    const Case &c = case_named(name);
    for (const int32_t schedule : schedules_of(c)) {
      RunOptions options;
      options.schedule = schedule;
      options.repeats = 2;
      const Outputs first = nccl_processes().run(c, false, options);
      const Outputs second = nccl_processes().run(c, false, options);
      EXPECT_EQ(first.complaints + second.complaints, "") << name;
      EXPECT_TRUE(same_bits(first.tensors, second.tensors)) << name << " " << schedule_name(schedule);
    }
  }
}

}  // namespace
}  // namespace lasp_test
