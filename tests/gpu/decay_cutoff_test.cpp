// The decay cutoff in the library: ranks with many tokens each and decays at and around the bound of
// kernels/launch.h (2^-40) have the oracle's results by every schedule, and what another rank's state does not
// influence does not see it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "support/group_params.h"
#include "support/measure.h"

namespace lasp_test {
namespace {

Case long_case(const std::string &name, int32_t decay, int32_t dtype, double constant_decay, double mean_decay) {
  Case c;
  c.name = "decay_cutoff_" + name;
  c.tokens = 3300, c.decay = decay, c.dtype = dtype, c.split = Split::ragged, c.aligned = true;
  c.constant_decay = constant_decay, c.mean_decay = mean_decay;
  c.heads_q = c.heads_k = c.heads_v = 2;
  c.head_dim_k = 64, c.head_dim_v = 64;
  return c;
}

// General kernels work on runs of 128 tokens, tensor cores on runs of 768 and more: -27.7 / 128 and / 768 a token
// are where a state just lives until the next run, or just does not.
std::vector<Case> cases() {
  std::vector<Case> cases;
  for (const double at : {0.98, 1.0, 1.02})
    cases.push_back(long_case("float32_at_" + std::to_string(int(100 * at)), LASP_DECAY_HEAD, LASP_FLOAT32,
                              -27.7259 / 128 * at, 0.2));
  cases.push_back(long_case("float32_scalar", LASP_DECAY_SCALAR, LASP_FLOAT32, 0, 27.7259 / 128));
  cases.push_back(long_case("bfloat16_at_run", LASP_DECAY_HEAD, LASP_BFLOAT16, -27.7259 / 768, 0.2));
  cases.push_back(long_case("bfloat16_at_part", LASP_DECAY_HEAD, LASP_BFLOAT16, -27.7259 / 192, 0.2));
  cases.push_back(long_case("bfloat16_scalar", LASP_DECAY_SCALAR, LASP_BFLOAT16, 0, 27.7259 / 512));
  cases.push_back(long_case("bfloat16_weak", LASP_DECAY_SCALAR, LASP_BFLOAT16, 0, 1e-4));
  cases.push_back(long_case("bfloat16_fused", LASP_DECAY_SCALAR, LASP_BFLOAT16, 0, 27.7259 / 768));
  cases.back().head_dim_k = cases.back().head_dim_v = 128;
  // So many heads that a run fills the device: runs are not cut, and tails are found by parts.
  cases.push_back(long_case("bfloat16_tails", LASP_DECAY_HEAD, LASP_BFLOAT16, 0, 0.02));
  cases.back().heads_q = cases.back().heads_k = cases.back().heads_v = 20;
  cases.back().head_dim_v = 128, cases.back().tokens = 2500;
  // The delta rule walks a rank's tokens in two parts of 576 here.
  for (const double tokens : {100, 576, 2000}) {
    cases.push_back(long_case("bfloat16_delta_" + std::to_string(int(tokens)), LASP_DECAY_SCALAR, LASP_BFLOAT16, 0,
                              27.7259 / tokens));
    cases.back().delta = true, cases.back().head_dim_k = cases.back().head_dim_v = 128;
  }
  return cases;
}

class DecayCutoff : public testing::TestWithParam<Case> {};

TEST_P(DecayCutoff, MatchesOracleByEverySchedule) {
  const Case &c = GetParam();
  for (const int32_t schedule : schedules_of(c)) {
    RunOptions options;
    options.schedule = schedule;
    options.recompute = true;
    const Outputs out = run_case(c, cached_data(c), Transport::threads, c.heads() > 2 ? 2 : 3, options);
    ASSERT_EQ(out.complaints, "") << schedule_name(schedule);
    EXPECT_EQ(compare(c, cached_expected(c), out), "") << schedule_name(schedule);
  }
}
INSTANTIATE_TEST_SUITE_P(Long, DecayCutoff, testing::ValuesIn(cases()),
                         [](const auto &test) { return test.param.name; });

// The first rank's state is no number. By a decay of e^-64 from run to run, the next rank's first run alone sees
// it.
TEST(DecayCutoff, WhatIsBeyondItDoesNotSeeTheIncomingState) {
  Case c = long_case("poisoned", LASP_DECAY_HEAD, LASP_FLOAT32, -0.5, 0.2);
  c.split = Split::even, c.tokens = 2048;
  constexpr int64_t kRank = 1024, kRun = 128;
  const CaseData &clean = cached_data(c);
  CaseData poisoned = clean;
  poisoned.v[0] = NAN;
  const auto run = [&](const CaseData &data) { return run_case(c, data, Transport::threads, 2, RunOptions{}); };
  const Outputs want = run(clean), got = run(poisoned);
  ASSERT_EQ(want.complaints, "");
  const int64_t token = c.heads() * c.head_dim_v;
  const std::vector<double> &o = got.tensors[kO], &right = want.tensors[kO];
  int64_t numbers = 0;
  for (int64_t i = kRank * token; i < (kRank + kRun) * token; i += c.head_dim_v)
    numbers += !std::isnan(o[size_t(i)]);
  EXPECT_LT(numbers, kRun * c.heads()) << "the poison did not travel: the test tests nothing";
  for (int64_t i = (kRank + kRun) * token; i < c.tokens * token; ++i)
    ASSERT_EQ(o[size_t(i)], right[size_t(i)]) << i;
}

}  // namespace
}  // namespace lasp_test
