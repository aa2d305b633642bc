// A scale of zero is a scale: o and the gradient of q are zero, and only what the states ask for is left of the
// others.
#include <gtest/gtest.h>

#include <algorithm>

#include "support/group_params.h"
#include "support/guarded_buffer.h"
#include "support/measure.h"

namespace lasp_test {
namespace {

Case zero_scale_case(int32_t decay, int32_t dtype, bool states) {
  Case c;
  c.name = "zero_scale_" + std::to_string(decay) + "_" + std::to_string(dtype) + (states ? "_states" : "");
  c.batch = 2, c.tokens = 75, c.heads_q = 4, c.decay = decay, c.dtype = c.decay_dtype = dtype, c.chunk = 16;
  c.zero_scale = true, c.states = states;
  return c;
}

void run_with_zero_scale(const Case &c, int32_t nranks) {
  SCOPED_TRACE(c.name + ", " + std::to_string(nranks) + " ranks");
  const CaseData data = make_data(c);
  const Outputs out = run_case(c, data, Transport::threads, nranks, {});
  ASSERT_EQ(out.complaints, "");
  const TensorSet expected = expected_of(c, data).tensors;
  for (const TensorId id : {kO, kFinalState, kDq, kDk, kDv, kDDecay, kDInitialState}) {
    const std::vector<double> &values = out.tensors[id];
    const bool is_zero = id == kO || id == kDq || (!c.states && id != kFinalState);
    if (is_zero) {
      EXPECT_TRUE(std::all_of(values.begin(), values.end(), [](double x) { return x == 0; })) << kTensorNames[id];
    } else if (id != kDDecay) {
      EXPECT_LE(relative_error(expected[id], values), error_bound(c, id, out.tensor_cores)) << kTensorNames[id];
    }
  }
}

TEST(ZeroScale, LeavesWhatTheStatesAskFor) {
  for (const int32_t decay : {LASP_DECAY_NONE, LASP_DECAY_HEAD, LASP_DECAY_SCALAR, LASP_DECAY_CHANNEL})
    for (const int32_t dtype : {LASP_FLOAT32, LASP_BFLOAT16})
      for (const bool states : {false, true})
        for (const int32_t nranks : {1, 3}) run_with_zero_scale(zero_scale_case(decay, dtype, states), nranks);
}

// Of the dimensions that a GPU has its fastest kernels for.
TEST(ZeroScale, WideHeads) {
  if (!on_cuda()) GTEST_SKIP() << "on a GPU";
  for (const int32_t decay : {LASP_DECAY_NONE, LASP_DECAY_SCALAR, LASP_DECAY_CHANNEL})
    for (const int32_t heads_k : {4, 2}) {
      Case c = zero_scale_case(decay, LASP_BFLOAT16, true);
      c.name += "_wide_" + std::to_string(heads_k);
      c.tokens = 300, c.head_dim_k = c.head_dim_v = 128, c.heads_k = c.heads_v = heads_k;
      for (const int32_t nranks : {1, 3}) run_with_zero_scale(c, nranks);
    }
}

// A GPU divides by the scale, unless that is zero; it need not be here to say so.
TEST(ZeroScale, OnlyWhatCannotBeDividedByIsRefusedForAGpu) {
  lasp_problem p = LASP_PROBLEM_INIT;
  p.tokens = 64, p.head_dim_k = p.head_dim_v = 16, p.scale_given = 1;
  lasp_placement placement = LASP_PLACEMENT_INIT;
  placement.device = LASP_DEVICE_CUDA, placement.capability = 90, placement.multiprocessors = 132;
  lasp_plan_info info = LASP_PLAN_INFO_INIT;
  const lasp_status status = lasp_problem_get_info(&p, &placement, &info);
  if (status == LASP_ERROR_NOT_BUILT || status == LASP_ERROR_NO_DEVICE) GTEST_SKIP() << lasp_last_error();
  EXPECT_EQ(status, LASP_OK) << lasp_last_error();
  p.scale = 1e-40f;
  EXPECT_EQ(lasp_problem_get_info(&p, &placement, &info), LASP_ERROR_UNSUPPORTED);
  EXPECT_NE(std::string(lasp_last_error()).find("with backward = 1 a scale this small"), std::string::npos)
      << lasp_last_error();
  p.backward = 0;
  EXPECT_EQ(lasp_problem_get_info(&p, &placement, &info), LASP_OK) << lasp_last_error();
}

TEST(ZeroScale, Bidirectional) {
  Case c = zero_scale_case(LASP_DECAY_NONE, LASP_FLOAT32, true);
  c.name += "_bidirectional", c.mask = LASP_MASK_BIDIRECTIONAL;
  for (const int32_t nranks : {1, 3}) run_with_zero_scale(c, nranks);
}

}  // namespace
}  // namespace lasp_test
