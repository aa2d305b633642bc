// What may be left out: optional outputs, the backward half of a plan, the tensors of a rank without tokens.
#include <gtest/gtest.h>

#include <string_view>

#include "support/group_params.h"
#include "support/guarded_buffer.h"
#include "support/measure.h"

namespace lasp_test {
namespace {

std::vector<Case> named_cases() {
  std::vector<Case> cases;
  for (const char *decay : {"none", "head", "scalar", "channel", "delta_none", "delta_channel"}) {
    for (const char *name : {"batch", "packed_sparse", "sparse_ranks", "no_states", "no_tokens"}) {
      cases.push_back(case_named(std::string(decay) + "_" + name));
    }
  }
  cases.push_back(case_named("bidirectional_sparse"));
  return cases;
}

class Absent : public testing::TestWithParam<Case> {
 protected:
  // Runs with `options` and as usual, and expects the same bits in every tensor that both have.
  void expect_same_bits(RunOptions options, const std::vector<TensorId> &missing) {
    const Case &c = GetParam();
    for (const int32_t nranks : {1, 3}) {
      for (const int32_t schedule : schedules_of(c)) {
        RunOptions usual;
        usual.schedule = options.schedule = schedule;
        const Outputs all = run_case(c, cached_data(c), Transport::threads, nranks, usual);
        const Outputs some = run_case(c, cached_data(c), Transport::threads, nranks, options);
        ASSERT_EQ(all.complaints + some.complaints, "") << schedule_name(schedule);
        TensorSet expected = all.tensors;
        for (const TensorId id : missing) expected[id].clear();
        EXPECT_TRUE(same_bits(expected, some.tensors)) << schedule_name(schedule) << " ranks " << nranks;
      }
    }
  }
};

TEST_P(Absent, OptionalOutputs) {
  RunOptions options;
  options.optional_outputs = false;
  expect_same_bits(options, {kFinalState, kDDecay, kDInitialState});
}

TEST_P(Absent, ForwardOnlyPlan) {
  RunOptions options;
  options.backward = false;
  expect_same_bits(options, {kDq, kDk, kDv, kDDecay, kDInitialState, kDBeta});
}

TEST_P(Absent, TensorsOfARankWithoutTokens) {
  RunOptions options;
  options.null_when_empty = true;
  expect_same_bits(options, {});
}

// final_state (when it is not broadcast) and the optional gradients are each rank's own choice.
TEST_P(Absent, OptionalOutputsOnSomeRanksOnly) {
  const Case &c = GetParam();
  std::vector<lasp_comm *> comms(3);
  ASSERT_EQ(lasp_comm_create_threads(3, comms.data()), LASP_OK) << lasp_last_error();
  std::vector<RankResult> ranks(3);
  on_threads(3, [&](int32_t rank) {
    RunOptions options;
    options.optional_outputs = rank == 1;
    ranks[rank] = run_rank(c, cached_data(c), comms[rank], options);
  });
  for (const RankResult &rank : ranks) EXPECT_EQ(rank.complaints, "");
  for (lasp_comm *comm : comms) EXPECT_EQ(lasp_comm_destroy(comm), LASP_OK) << lasp_last_error();
}

INSTANTIATE_TEST_SUITE_P(Table, Absent, testing::ValuesIn(named_cases()),
                         [](const auto &test) { return test.param.name; });

}  // namespace
}  // namespace lasp_test
