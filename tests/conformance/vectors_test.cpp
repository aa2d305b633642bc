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

std::vector<VectorParam> params() {
  std::vector<VectorParam> params;
  for (size_t index = 0; index < all_vectors().size(); ++index)
    for (const GroupSize &group : thread_groups())
      for (const int32_t schedule : schedules_of(all_vectors()[index].problem))
        params.emplace_back(index, group, schedule);
  return params;
}

INSTANTIATE_TEST_SUITE_P(Given, Vectors, testing::ValuesIn(params()), name_of);

}  // namespace
}  // namespace lasp_test
