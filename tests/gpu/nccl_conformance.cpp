// The case table and the given vectors over NCCL, on 2, 4 and 8 GPUs as far as there are; graphs; order on streams.
#include <gtest/gtest.h>

#include "gpu/nccl_cases.h"
#include "gpu/nccl_group.h"
#include "support/group_params.h"
#include "support/vectors.h"

namespace lasp_test {
namespace {

class Nccl : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string reason = gpu::why_no_nccl(); !reason.empty()) GTEST_SKIP() << reason;
    if (nccl_group_sizes().empty()) GTEST_SKIP() << "needs two GPUs";
  }

  // On every number of GPUs, by every schedule.
  void run_everywhere(const Case &c, const CaseData &data, const Expected &expected, RunOptions options) {
    for (const int32_t nranks : nccl_group_sizes()) {
      for (const int32_t schedule : schedules_of(c)) {
        options.schedule = schedule;
        const Outputs out = run_case_nccl(c, data, nccl_group(nranks), options);
        expect_right(c, expected, out, c.name + " on " + std::to_string(nranks) + " by " + schedule_name(schedule));
      }
    }
  }
  void run_everywhere(const Case &c, const RunOptions &options) {
    run_everywhere(c, cached_data(c), cached_expected(c), options);
  }
};

class NcclCases : public Nccl, public testing::WithParamInterface<Case> {};
TEST_P(NcclCases, MatchOracle) {
  RunOptions options;
  options.recompute = true;
  run_everywhere(GetParam(), options);
}
INSTANTIATE_TEST_SUITE_P(Table, NcclCases, testing::ValuesIn(all_cases()),
                         [](const auto &test) { return test.param.name; });

class NcclVectors : public Nccl, public testing::WithParamInterface<size_t> {};
TEST_P(NcclVectors, MatchStoredResults) {
  const Vector &vector = all_vectors()[GetParam()];
  run_everywhere(vector.problem, vector.data, vector.expected, {});
}
INSTANTIATE_TEST_SUITE_P(Given, NcclVectors, testing::Range(size_t{0}, all_vectors().size()),
                         [](const auto &test) { return all_vectors()[test.param].problem.name; });

// Ranks are captured and replayed at the same time, exchange included; each replay has the eager passes' bits.
TEST_F(Nccl, GraphReplayHasTheBitsOfTheEagerPasses) {
  RunOptions options;
  options.graph_replays = 3;
  for (const char *name : kChosen) run_everywhere(case_named(name), options);
}

TEST_F(Nccl, WorkIsOrderedOnTheStreamAndCallsReturnAtOnce) {
  RunOptions options;
  options.late_inputs = true;
  for (const char *name : kChosen) run_everywhere(case_named(name), options);
}

TEST_F(Nccl, CurrentDeviceAndLastErrorArePreserved) {
  RunOptions options;
  options.other_device = true;
  options.old_error = true;
  for (const char *name : kChosen) run_everywhere(case_named(name), options);
}

TEST_F(Nccl, SameBitsFromRunToRun) {
  for (const char *name : kChosen) {
    const Case &c = case_named(name);
    for (const int32_t schedule : schedules_of(c)) {
      RunOptions options;
      options.schedule = schedule;
      options.repeats = 2;
      const NcclGroup &group = nccl_group(nccl_group_sizes().back());
      const Outputs first = run_case_nccl(c, cached_data(c), group, options);
      const Outputs second = run_case_nccl(c, cached_data(c), group, options);
      EXPECT_EQ(first.complaints + second.complaints, "") << name;
      EXPECT_TRUE(same_bits(first.tensors, second.tensors)) << name << " " << schedule_name(schedule);
    }
  }
}

}  // namespace
}  // namespace lasp_test
