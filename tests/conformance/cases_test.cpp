// Every case of the table on every group of threads by every schedule, against the oracle.
#include <gtest/gtest.h>

#include "support/group_params.h"
#include "support/measure.h"

namespace lasp_test {
namespace {

using CaseParam = std::tuple<Case, GroupSize, int32_t>;

class Cases : public testing::TestWithParam<CaseParam> {};

TEST_P(Cases, MatchOracle) {
  const auto &[c, group, schedule] = GetParam();
  if (left_out(schedule, c)) return;
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

INSTANTIATE_TEST_SUITE_P(Table, Cases,
                         testing::Combine(testing::ValuesIn(all_cases()), testing::ValuesIn(thread_groups()),
                                          testing::ValuesIn(all_schedules())),
                         name_of);

}  // namespace
}  // namespace lasp_test
