// Determinism and the state cache: the same bits from run to run, from call to call on one plan, and from a forward
// pass that starts at the state cache and sends nothing.
#include <gtest/gtest.h>

#include <string_view>

#include <functional>

#include "support/group_params.h"
#include "support/guarded_buffer.h"
#include "support/measure.h"

namespace lasp_test {
namespace {

class Repeat : public testing::TestWithParam<Case> {};

// Two runs in fresh groups, contexts, plans and memory.
TEST_P(Repeat, SameBitsFromRunToRun) {
  const Case &c = GetParam();
  for (const GroupSize &group : thread_groups()) {
    for (const int32_t schedule : schedules_of(c)) {
      RunOptions options;
      options.schedule = schedule;
      const Outputs first = run_case(c, cached_data(c), group.transport, group.nranks, options);
      const Outputs second = run_case(c, cached_data(c), group.transport, group.nranks, options);
      ASSERT_EQ(first.complaints + second.complaints, "");
      EXPECT_TRUE(same_bits(first.tensors, second.tensors)) << group_name(group, schedule);
    }
  }
}

std::vector<Case> named_cases() {
  std::vector<Case> cases;
  for (const char *name :
       {"none_batch", "none_bfloat16", "head_long", "head_packed_ragged", "scalar_long", "scalar_uneven_batch",
        "channel_long", "channel_packed_at_rank_edges", "channel_float16", "bidirectional_ragged",
        "delta_none_long", "delta_head_uneven_batch", "delta_scalar_packed_ragged", "delta_channel_bfloat16"}) {
    cases.push_back(case_named(name));
  }
  return cases;
}
INSTANTIATE_TEST_SUITE_P(Table, Repeat, testing::ValuesIn(named_cases()),
                         [](const auto &test) { return test.param.name; });

class Recompute : public testing::TestWithParam<std::tuple<Case, int32_t>> {};

// What the state cache holds does not depend on how it came: one schedule for each case, all of them over the
// table.
int32_t schedule_for(const Case &c) {
  const std::vector<int32_t> all = schedules_of(c);
  return all[turn(c, all.size())];
}

// On one plan: forward, forward from the state cache (RankRun holds o to the same bits and traffic to zero),
// backward; all of it twice, with other garbage in the workspace. A case has one kind of cache alone, the other one
// on three ranks.
TEST_P(Recompute, SameBitsAndNothingSent) {
  Case c = std::get<0>(GetParam());
  c.cache = std::get<1>(GetParam());
  RunOptions options;
  options.recompute = true;
  options.repeats = 2;
  options.schedule = schedule_for(c);
  const int32_t first = (c.cache == LASP_CACHE_INCOMING) == (turn(c, 2, "ranks") == 0) ? 1 : 3;
  for (const int32_t nranks : {1, 3}) {
    if (nranks != first && !whole_run()) continue;
    const Outputs out = run_case(c, cached_data(c), Transport::threads, nranks, options);
    ASSERT_EQ(out.complaints, "") << nranks << " ranks";
    EXPECT_EQ(compare(c, cached_expected(c), out), "") << nranks << " ranks";
  }
}

INSTANTIATE_TEST_SUITE_P(Table, Recompute,
                         testing::Combine(testing::ValuesIn(all_cases()),
                                          testing::Values(int32_t{LASP_CACHE_INCOMING},
                                                          int32_t{LASP_CACHE_CHUNKS})),
                         [](const auto &test) {
                           return std::get<0>(test.param).name +
                                  (std::get<1>(test.param) == LASP_CACHE_INCOMING ? "_incoming" : "_chunks");
                         });

}  // namespace
}  // namespace lasp_test
