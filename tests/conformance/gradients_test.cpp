// lasp_backward against finite differences of lasp_forward, over two ranks, carried states included: the library
// held to itself, with no oracle between.
//
// The loss L = <o, d_o> + <final_state, d_final_state> is summed in float64. With o and final_state in float32 of
// relative error e = 2e-6 (see measure.cpp), L is off by at most r = e (||o|| ||d_o|| + ||S|| ||dS||).
//
// - L is linear in any one element of q, k, v and the initial state: a central difference has no truncation error,
// at
//   any step. A step of 4 makes its rounding error r / 4.
//   So it is in one beta of the delta rule, though not in an element of its k, which the oracle's is held to.
// - In one element of a per-token decay L is A + B exp(g): its central difference is L'(g) sinh(h) / h exactly.
// With
//   h = 1 and that factor divided out the rounding error is below r.
// - A per-head decay enters at every power: the five-point difference of step h = 1/16 has rounding error
//   18 r / (12 h) = 24 r and truncation h^4 / 30 |L'''''|. With g < -1.2, |L'''''| <= sum of n^5 exp(-1.2 n) times
//   the size of L's terms, and that sum is below 41: 2.1e-5 (||o|| ||d_o|| + ||S|| ||dS||).
#include <gtest/gtest.h>

#include <cmath>

#include "support/group.h"
#include "support/guarded_buffer.h"
#include "support/measure.h"

namespace lasp_test {
namespace {

constexpr double kRelative = 2e-6;

double norm(const std::vector<float> &x) {
  double sum = 0.0;
  for (const double value : x) sum += value * value;
  return std::sqrt(sum);
}
double norm(const std::vector<double> &x) { return relative_error(std::vector<double>(x.size(), 0.0), x); }

double dot(const std::vector<double> &a, const std::vector<float> &b) {
  double sum = 0.0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

class FiniteDifferences {
 public:
  FiniteDifferences(const Case &c, int32_t schedule) : case_(c), data_(make_data(c)) {
    for (float &g : data_.g) g -= 1.2f;
    options_.schedule = schedule;
    const Outputs out = run_case(case_, data_, Transport::threads, 2, options_);
    EXPECT_EQ(out.complaints, "");
    gradients_ = out.tensors;
    options_.backward = false;
  }

  void check_linear(std::vector<float> CaseData::*input, TensorId id, size_t every) {
    constexpr float kStep = 4.0f;
    for (size_t i = 0; i < (data_.*input).size(); i += every) {
      double size = 0.0;
      const auto [up, up_at] = loss(input, i, kStep, size);
      const auto [down, down_at] = loss(input, i, -kStep, size);
      expect(id, i, (up - down) / (up_at - down_at), kRelative * size / kStep);
    }
  }

  void check_token_decay(size_t every) {
    for (size_t i = 0; i < data_.g.size(); i += every) {
      double size = 0.0;
      const auto [up, up_at] = loss(&CaseData::g, i, 1.0f, size);
      const auto [down, down_at] = loss(&CaseData::g, i, -1.0f, size);
      const double h = (up_at - down_at) / 2.0;
      expect(kDDecay, i, (up - down) / (2.0 * std::sinh(h)), kRelative * size);
    }
  }

  void check_head_decay() {
    constexpr float kStep = 0.0625f;
    for (size_t i = 0; i < data_.g.size(); ++i) {
      double size = 0.0;
      const auto near = loss(&CaseData::g, i, kStep, size).first - loss(&CaseData::g, i, -kStep, size).first;
      const auto far = loss(&CaseData::g, i, 2 * kStep, size).first - loss(&CaseData::g, i, -2 * kStep, size).first;
      expect(kDDecay, i, (8.0 * near - far) / (12.0 * kStep), (24.0 * kRelative + 2.1e-5) * size);
    }
  }

 private:
  // The loss with one element moved, and where the float landed. `size` keeps the largest bound of L's terms.
  std::pair<double, double> loss(std::vector<float> CaseData::*input, size_t i, float step, double &size) {
    CaseData moved = data_;
    (moved.*input)[i] += step;
    const Outputs out = run_case(case_, moved, Transport::threads, 2, options_);
    EXPECT_EQ(out.complaints, "");
    const std::vector<double> &o = out.tensors[kO], &s = out.tensors[kFinalState];
    size = std::max(size, norm(o) * norm(data_.d_o) + norm(s) * norm(data_.d_final_state));
    return {dot(o, data_.d_o) + dot(s, data_.d_final_state), (moved.*input)[i]};
  }

  void expect(TensorId id, size_t i, double difference, double tolerance) {
    ASSERT_LT(i, gradients_[id].size());
    EXPECT_NEAR(gradients_[id][i], difference, tolerance + kRelative * norm(gradients_[id]))
        << case_.name << " " << kTensorNames[id] << "[" << i << "]";
  }

  Case case_;
  CaseData data_;
  RunOptions options_;
  TensorSet gradients_;
};

Case small_case(const char *name, int32_t decay) {
  Case c;
  c.name = std::string("gradients_") + name;
  c.tokens = 11, c.heads_q = 1, c.heads_k = 2, c.heads_v = 2, c.head_dim_k = 8, c.head_dim_v = 16;
  c.decay = decay, c.chunk = 16;
  c.cu_seqlens = {0, 2, 9, 9, 11};  // the second sequence lies on both ranks
  return c;
}

void check(const Case &c, int32_t schedule) {
  FiniteDifferences differences(c, schedule);
  differences.check_linear(&CaseData::q, kDq, 7);
  if (!c.delta) differences.check_linear(&CaseData::k, kDk, 11);
  if (c.delta) differences.check_linear(&CaseData::beta, kDBeta, 3);
  differences.check_linear(&CaseData::v, kDv, 29);
  differences.check_linear(&CaseData::initial_state, kDInitialState, 61);
  if (c.decay == LASP_DECAY_HEAD) differences.check_head_decay();
  if (c.decay == LASP_DECAY_SCALAR) differences.check_token_decay(1);
  if (c.decay == LASP_DECAY_CHANNEL) differences.check_token_decay(9);
}

TEST(Gradients, DecayNone) { check(small_case("none", LASP_DECAY_NONE), LASP_SCHEDULE_RING); }
TEST(Gradients, DecayPerHead) { check(small_case("head", LASP_DECAY_HEAD), LASP_SCHEDULE_ALL_GATHER); }
TEST(Gradients, DecayPerToken) { check(small_case("scalar", LASP_DECAY_SCALAR), LASP_SCHEDULE_ALL_SCAN); }
TEST(Gradients, DecayPerChannel) { check(small_case("channel", LASP_DECAY_CHANNEL), LASP_SCHEDULE_DOUBLING); }
TEST(Gradients, DeltaRule) {
  constexpr std::pair<const char *, int32_t> kCases[] = {
      {"delta_none", LASP_DECAY_NONE}, {"delta_scalar", LASP_DECAY_SCALAR}, {"delta_channel", LASP_DECAY_CHANNEL}};
  for (const auto &[name, decay] : kCases) {
    Case c = small_case(name, decay);
    c.delta = true;
    check(c, LASP_SCHEDULE_DOUBLING);
  }
}
TEST(Gradients, Bidirectional) {
  Case c = small_case("bidirectional", LASP_DECAY_NONE);
  c.mask = LASP_MASK_BIDIRECTIONAL, c.cu_seqlens = {}, c.batch = 2;
  check(c, LASP_SCHEDULE_RING);
}

}  // namespace
}  // namespace lasp_test
