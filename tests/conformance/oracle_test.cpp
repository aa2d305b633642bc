// The oracle itself: equal to the given vectors, and its unmasked form equal to its own finite differences.
#include <gtest/gtest.h>

#include <cmath>

#include "support/case.h"
#include "support/dtype.h"
#include "support/measure.h"
#include "support/vectors.h"

namespace lasp_test {
namespace {

// The vectors' results were rounded to float32 once: half a unit, 2^-24 of each element at most.
TEST(Oracle, AgreesWithEveryVector) {
  ASSERT_EQ(all_vectors().size(), 40u);
  for (const Vector &vector : all_vectors()) {
    const TensorSet got = expected_of(vector.problem, vector.data).tensors;
    for (int id = 0; id < kTensors; ++id) {
      ASSERT_EQ(got[id].size(), vector.expected.tensors[id].size())
          << vector.problem.name << " " << kTensorNames[id];
      EXPECT_LE(relative_error(vector.expected.tensors[id], got[id]), 0x1p-24)
          << vector.problem.name << " " << kTensorNames[id];
    }
  }
}

TEST(Oracle, ExactCasesAreExactInFloat64) {
  EXPECT_EQ(std::exp(-M_LN2), 0.5);
  for (const Vector &vector : all_vectors()) {
    if (!vector.problem.exact) continue;
    const TensorSet got = expected_of(vector.problem, vector.data).tensors;
    for (int id = 0; id < kTensors; ++id) {
      if (id == kDDecay) continue;
      EXPECT_EQ(got[id], vector.expected.tensors[id]) << vector.problem.name << " " << kTensorNames[id];
    }
  }
}

// Every result of an exact case is a float32, or the case would not be one.
TEST(Oracle, ExactCasesOfTheTableFitFloat32) {
  for (const Case &c : all_cases()) {
    if (!c.exact) continue;
    const TensorSet &expected = cached_expected(c).tensors;
    for (int id = 0; id < kTensors; ++id) {
      if (id == kDDecay && c.decay == LASP_DECAY_HEAD) continue;
      for (const double x : expected[id]) ASSERT_EQ(x, static_cast<float>(x)) << c.name << " " << kTensorNames[id];
    }
  }
}

// The loss is linear in each of q, k, v and the state alone, so central differences have no truncation error: with
// steps of 1/2 only float64 rounding is left.
TEST(Oracle, BidirectionalGradientsAreTheFiniteDifferences) {
  Case c;
  c.name = "oracle_bidirectional";
  c.mask = LASP_MASK_BIDIRECTIONAL, c.tokens = 12, c.heads_q = 4, c.head_dim_v = 8;
  c.cu_seqlens = {0, 5, 5, 12};
  const CaseData data = make_data(c);
  const TensorSet gradients = expected_of(c, data).tensors;
  const auto loss = [&](const CaseData &d) {
    const TensorSet t = expected_of(c, d).tensors;
    double sum = 0.0;
    for (size_t i = 0; i < t[kO].size(); ++i) sum += t[kO][i] * data.d_o[i];
    for (size_t i = 0; i < t[kFinalState].size(); ++i) sum += t[kFinalState][i] * data.d_final_state[i];
    return sum;
  };
  const std::pair<std::vector<float> CaseData::*, TensorId> inputs[] = {
      {&CaseData::q, kDq}, {&CaseData::k, kDk}, {&CaseData::v, kDv}, {&CaseData::initial_state, kDInitialState}};
  for (const auto &[input, id] : inputs) {
    for (size_t i = 0; i < (data.*input).size(); i += 29) {
      CaseData up = data, down = data;
      (up.*input)[i] += 0.5f;
      (down.*input)[i] -= 0.5f;
      const double step = static_cast<double>((up.*input)[i]) - (down.*input)[i];
      EXPECT_NEAR((loss(up) - loss(down)) / step, gradients[id][i], 1e-9) << kTensorNames[id] << " " << i;
    }
  }
}

TEST(Dtype, RoundsToNearestEven) {
  EXPECT_EQ(round_to_dtype(1.0 + 0x1p-8, LASP_BFLOAT16), 1.0f);  // a tie, to even
  EXPECT_EQ(round_to_dtype(1.0 + 3 * 0x1p-8, LASP_BFLOAT16), 1.0f + 0x1p-6f);
  EXPECT_EQ(round_to_dtype(1.0 + 0x1p-11, LASP_FLOAT16), 1.0f);
  EXPECT_EQ(round_to_dtype(65519.9, LASP_FLOAT16), 65504.0f);
  EXPECT_EQ(round_to_dtype(65520.0, LASP_FLOAT16), INFINITY);
  EXPECT_EQ(round_to_dtype(0x1p-25, LASP_FLOAT16), 0.0f);
  EXPECT_EQ(round_to_dtype(0x1.8p-24, LASP_FLOAT16), 0x1p-23f);
}

TEST(Dtype, EveryBitPatternOf16BitsSurvivesDecodeAndEncode) {
  for (const int32_t dtype : {LASP_BFLOAT16, LASP_FLOAT16}) {
    for (uint32_t bits = 0; bits < 0x10000; ++bits) {
      const float value = decode_16(static_cast<uint16_t>(bits), dtype);
      if (std::isnan(value)) continue;
      ASSERT_EQ(encode_16(value, dtype), bits) << dtype;
    }
  }
}

}  // namespace
}  // namespace lasp_test
