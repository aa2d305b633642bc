// The step's own arithmetic, on every instruction set this machine can run: a token's decay in two parts, and where
// it must be exact.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "cpu/kernels.h"
#include "decay.h"

namespace lasp::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

class StepKernel : public testing::TestWithParam<const Kernels *> {
 protected:
  static SplitDecay split(float x) {
    std::vector<float> in(8, x), base(8), rest(8);
    GetParam()->split_exps(base.data(), rest.data(), in.data(), 8);
    return {base[0], rest[0]};
  }
  // The state after one token with key `k` and value `v` in each place.
  static float stepped(float state, const SplitDecay *decay, float k, float v) {
    std::vector<float> states(64, state), key(8, k), value(8, v), query(8, 1.0f), out(8);
    const SplitFactor factor = {decay ? &decay->base : nullptr, decay ? &decay->rest : nullptr, 0};
    GetParam()->step(states.data(), factor, query.data(), key.data(), value.data(), 1.0f, out.data(), 8, 8);
    EXPECT_TRUE(std::abs(out[7] - 8 * states[63]) <= 1e-6f * std::abs(out[7]) || !std::isfinite(out[7]));
    return states[63];
  }
};

bool power_of_two(float x) {
  int exponent;
  return std::frexp(x, &exponent) == 0.5f;
}

// The rest holds the last places of exp(x) - base, so that the sum of both is far nearer to exp(x) than a float32
// near 1 can be: 3 u of the rest, not of the whole.
TEST_P(StepKernel, DecayInTwoPartsIsExactToTheLastPlaceOfTheRest) {
  for (float x = -1e-9f; x > -61; x *= 1.07f) {
    const SplitDecay d = split(x);
    const double rest = std::exp(static_cast<double>(x)) - d.base;
    ASSERT_TRUE(power_of_two(d.base)) << x;
    ASSERT_LE(std::abs(rest), 0.4143 * d.base) << x;
    // Where x has whole powers of two in it, ln 2 leaves rounding of its own: half a unit of ln 2 / 2 at most.
    const double reduction = x < -0.34f ? 0x1p-24 * d.base : 0.0;
    ASSERT_LE(std::abs(d.rest - rest), 3 * 0x1p-24 * std::abs(rest) + reduction) << x;
  }
}

TEST_P(StepKernel, DecayInTwoPartsAtItsEnds) {
  EXPECT_EQ(split(0).base, 1.0f);
  EXPECT_EQ(split(0).rest, 0.0f);
  for (const float x : {-kInfinity, -1e30f, -87.4f}) {
    EXPECT_EQ(split(x).base, 0.0f) << x;
    EXPECT_EQ(split(x).rest, 0.0f) << x;
  }
  EXPECT_NEAR(split(-70).base / std::exp(-70.0), 1.0, 2e-7);
  EXPECT_EQ(split(-70).rest, 0.0f);
  EXPECT_TRUE(std::isnan(split(std::nanf("")).base));
  EXPECT_EQ(split(89).base, kInfinity);
  for (const float x : {1e-6f, 0.3f, 5.0f, 87.9f})
    EXPECT_NEAR((static_cast<double>(split(x).base) + split(x).rest) / std::exp(static_cast<double>(x)), 1.0, 2e-7);
}

TEST_P(StepKernel, StateIsRoundedOnce) {
  // Where nothing is written: S exp(g) rounded to nearest, g weaker than half a last place included.
  for (const float g : {-1e-9f, -1e-7f, -1e-3f, -0.1f, -0.5f, -3.0f}) {
    const SplitDecay d = split(g);
    for (const float s : {1.0f, 1.999f, -3.3333f, 1e-20f, 1e20f}) {
      const double wanted = static_cast<double>(s) * std::exp(static_cast<double>(g));
      const double half_unit = std::ldexp(1.0, std::ilogb(wanted) - 24);
      EXPECT_LE(std::abs(stepped(s, &d, 0, 0) - wanted), 2.2 * half_unit) << g << " " << s;
    }
  }
}

TEST_P(StepKernel, ExactWhereTheRecurrenceIs) {
  const SplitDecay half = head_decay_split(-0.693147182f), zero = split(-kInfinity), nan = split(std::nanf(""));
  EXPECT_EQ(stepped(1 + 0x1p-23f, &half, 0, 0), 0.5f + 0x1p-24f);
  EXPECT_EQ(stepped(6, &half, 2, 5), 13.0f);
  EXPECT_EQ(stepped(6, nullptr, 2, 5), 16.0f);
  EXPECT_EQ(stepped(6, &zero, 2, 5), 10.0f);
  EXPECT_TRUE(std::isnan(stepped(kInfinity, &zero, 2, 5)));  // infinity times zero, as written
  EXPECT_TRUE(std::isnan(stepped(6, &nan, 2, 5)));
  EXPECT_TRUE(std::isnan(stepped(std::nanf(""), &half, 2, 5)));
  EXPECT_EQ(stepped(kInfinity, nullptr, 2, 5), kInfinity);
  EXPECT_FALSE(std::isfinite(stepped(kInfinity, &half, 2, 5)));
}

TEST(StepDecay, PerHeadIsSplitLikeItsPowers) {
  for (int n = 1; n <= 60; ++n) {
    const SplitDecay d = head_decay_split(static_cast<float>(-n * std::log(2.0)));
    EXPECT_EQ(d.base, std::ldexp(1.0f, -n)) << n;
    EXPECT_EQ(d.rest, 0.0f) << n;
  }
  for (float g = -1e-9f; g > -87; g *= 1.1f) {
    const SplitDecay d = head_decay_split(g);
    const double wanted = std::exp(static_cast<double>(g)), rest = wanted - d.base;
    ASSERT_NEAR((static_cast<double>(d.base) + d.rest) / head_decay_power(g, 1), 1.0, 1.01 * 0x1p-24) << g;
    if (d.rest != 0) {
      ASSERT_LE(std::abs(d.rest - rest), 0x1p-23 * std::abs(rest) + 1e-15 * wanted) << g;
    }
  }
  for (const float g : {-88.0f, -1e4f, -kInfinity}) EXPECT_EQ(head_decay_split(g).base, 0.0f) << g;
  EXPECT_TRUE(std::isnan(head_decay_split(std::nanf("")).base));
  EXPECT_EQ(head_decay_split(0).base, 1.0f);
}

INSTANTIATE_TEST_SUITE_P(Kernels, StepKernel, testing::ValuesIn(usable_kernels().begin(), usable_kernels().end()),
                         [](const auto &which) { return which.index == 0 ? "best" : "portable"; });

}  // namespace
}  // namespace lasp::cpu
