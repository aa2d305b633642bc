// The given vectors on every group of threads by every schedule; the exact ones bit for bit.
#include <gtest/gtest.h>

#include "support/group_params.h"
#include "support/guarded_buffer.h"
#include "support/measure.h"
#include "support/vectors.h"

namespace lasp_test {
namespace {

using VectorParam = std::tuple<size_t, GroupSize, int32_t>;  // the vector by its index

class Vectors : public testing::TestWithParam<VectorParam> {};

TEST_P(Vectors, MatchStoredResults) {
  const auto &[index, group, schedule] = GetParam();
  const Vector &vector = all_vectors()[index];
  if (!serves(schedule, vector.problem)) return;
  RunOptions options;
  options.schedule = schedule;
  const Outputs out = run_case(vector.problem, vector.data, group.transport, group.nranks, options);
  ASSERT_EQ(out.complaints, "");
  EXPECT_EQ(compare(vector.problem, vector.expected, out), "");
}

std::string name_of(const testing::TestParamInfo<VectorParam> &info) {
  const auto &[index, group, schedule] = info.param;
  return all_vectors()[index].problem.name + "_" + group_name(group, schedule);
}

INSTANTIATE_TEST_SUITE_P(Given, Vectors,
                         testing::Combine(testing::Range(size_t{0}, all_vectors().size()),
                                          testing::ValuesIn(thread_groups()), testing::ValuesIn(all_schedules())),
                         name_of);

}  // namespace
}  // namespace lasp_test
