// Every case of the table on groups of threads by every schedule, against the oracle.
#include <gtest/gtest.h>

#include "support/group_params.h"
#include "support/measure.h"

namespace lasp_test {
namespace {

using CaseParam = std::tuple<Case, GroupSize, int32_t>;

class Cases : public testing::TestWithParam<CaseParam> {};

TEST_P(Cases, MatchOracle) {
  const auto &[c, group, schedule] = GetParam();
  RunOptions options;
  options.schedule = schedule;
  const Outputs out = run_case(c, cached_data(c), group.transport, group.nranks, options);
  ASSERT_EQ(out.complaints, "");
  EXPECT_EQ(compare(c, cached_expected(c), out), "");
}

std::string name_of(const testing::TestParamInfo<CaseParam> &info) {
  const auto &[c, group, schedule] = info.param;
  return c.name + "_" + group_name(group, schedule);
}

std::vector<CaseParam> params() {
  std::vector<CaseParam> params;
  for (const Case &c : all_cases())
    for (const GroupSize &group : thread_groups())
      for (const int32_t schedule : all_schedules())
        if (!left_out(schedule, c, group)) params.emplace_back(c, group, schedule);
  return params;
}

INSTANTIATE_TEST_SUITE_P(Table, Cases, testing::ValuesIn(params()), name_of);

}  // namespace
}  // namespace lasp_test
