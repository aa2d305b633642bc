// The arithmetic of a state's steps, maps and scans, on every instruction set this machine can run: the codes of
// decays, and where the results must be exact.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "core/decay.h"
#include "cpu/kernels.h"

namespace lasp::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr double kUnit = 0x1p-24;  // the largest relative error of one rounding

class StepKernel : public testing::TestWithParam<const Kernels *> {
 protected:
  static float code_of(double x) {
    std::vector<double> in(8, x);
    std::vector<float> out(8);
    GetParam()->decay_codes(out.data(), in.data(), 8);
    return out[0];
  }
  // The state after one token with key `k` and value `v` in each place.
  static float stepped(float state, float code, float k, float v) {
    std::vector<float> states(64, state), key(8, k), value(8, v), query(8, 1.0f), out(8);
    GetParam()->step(states.data(), {&code, 0}, query.data(), key.data(), value.data(), 1.0f, out.data(), 8, 8);
    // Of the sums 2 s, 3 s, ... 8 s those of 3, 5, 6 and 7 round, each by at most u of 8 s.
    const double sum = 8.0 * states[63];
    if (std::isfinite(sum)) {
      EXPECT_LE(std::abs(out[7] - sum), 4 * kUnit * std::abs(sum)) << out[7] << ", the state is " << states[63];
    } else {
      EXPECT_EQ(std::isnan(out[7]), std::isnan(sum)) << out[7] << ", the state is " << states[63];
      EXPECT_TRUE(std::isnan(sum) || out[7] == static_cast<float>(sum)) << out[7];
    }
    return states[63];
  }
};

// The polynomial and the reduction err by 3 u of exp(r) - 1 together. Where a power of two is taken out, the code
// is (exp(r) - 1) / 2 - 1/2 with exp(r) - 1 <= 0.415 and one more rounding: at most 3.2 u of itself. A strong decay
// is within a unit and a half of its last place, as CpuKernels has it.
TEST_P(StepKernel, CodesAreExactToTheirLastPlaces) {
  for (double x = -1e-9; x > -87; x *= 1.07) {
    const float code = code_of(x);
    ASSERT_EQ(std::signbit(code), x > -0.5) << x;
    if (x > -0.5) {
      ASSERT_LE(std::abs(code - std::expm1(x)), 3.2 * kUnit * -std::expm1(x)) << x;
    } else {
      ASSERT_LE(std::abs(code - std::exp(x)), 1.5 * std::ldexp(1.0, std::ilogb(std::exp(x)) - 23)) << x;
    }
  }
}

TEST_P(StepKernel, CodesAtTheEnds) {
  EXPECT_EQ(code_of(0), 0.0f);
  EXPECT_TRUE(std::signbit(code_of(0)));
  for (const double x : {-double{kInfinity}, -1e30, -87.4}) EXPECT_TRUE(forgets_all(code_of(x))) << x;
  EXPECT_TRUE(std::isnan(code_of(std::nan(""))));
  EXPECT_EQ(code_of(89), kInfinity);
  for (const double x : {1e-6, 0.3, 5.0, 87.9}) {
    EXPECT_FALSE(std::signbit(code_of(x))) << x;
    EXPECT_NEAR(code_of(x) / std::exp(x), 1.0, 1.5 * 2 * kUnit) << x;
  }
}

// Where nothing is written: S exp(g), rounded to nearest, g weaker than half a last place included. A rounding errs
// by a half unit. So does the code by 3.2 u, and the product by u, of what a weak decay takes away, of which u is
// at most two half units; and the code of a strong decay by a unit and a half, six half units where the product has
// the smaller last place.
TEST_P(StepKernel, StateIsRoundedOnce) {
  for (const double g : {-1e-9, -1e-7, -1e-3, -0.1, -0.49, -0.5, -3.0}) {
    const double half_units = g > -0.5 ? 1 + 2 * 4.2 * -std::expm1(g) / std::exp(g) : 7;
    for (const float s : {1.0f, 1.999f, -3.3333f, 1e-20f, 1e20f}) {
      const double wanted = static_cast<double>(s) * std::exp(g);
      const double half_unit = std::ldexp(1.0, std::ilogb(wanted) - 24);
      EXPECT_LE(std::abs(stepped(s, code_of(g), 0, 0) - wanted), half_units * half_unit) << g << " " << s;
    }
  }
}

TEST_P(StepKernel, ExactWhereTheRecurrenceIs) {
  const float half = head_decay_code(-0.693147182f, 1), nan = code_of(std::nan(""));
  EXPECT_EQ(stepped(1 + 0x1p-23f, half, 0, 0), 0.5f + 0x1p-24f);
  EXPECT_EQ(stepped(6, half, 2, 5), 13.0f);
  EXPECT_EQ(stepped(6, kKeepsAll, 2, 5), 16.0f);
  EXPECT_EQ(stepped(6, kForgetsAll, 2, 5), 10.0f);
  EXPECT_TRUE(std::isnan(stepped(kInfinity, kForgetsAll, 2, 5)));  // infinity times zero, as written
  EXPECT_TRUE(std::isnan(stepped(6, nan, 2, 5)));
  EXPECT_TRUE(std::isnan(stepped(std::nanf(""), half, 2, 5)));
  EXPECT_EQ(stepped(kInfinity, kKeepsAll, 2, 5), kInfinity);
  EXPECT_EQ(stepped(kInfinity, half, 2, 5), kInfinity);
}

// The same three cases of a factor where maps are applied: what a decay of zero multiplies does not matter.
TEST_P(StepKernel, MapsAreAppliedAsTheirCodesSay) {
  const auto applied = [](float code, float x) {
    std::vector<float> from(8, x), to(8, 3.0f);
    GetParam()->affine(to.data(), {&code, 0}, from.data(), to.data(), 1, 8);
    for (const float y : to) EXPECT_TRUE(y == to[0] || std::isnan(y));
    return to[0];
  };
  EXPECT_EQ(applied(kKeepsAll, 2), 5.0f);
  EXPECT_EQ(applied(0.5f, 2), 4.0f);
  EXPECT_EQ(applied(-0.25f, 2), 4.5f);
  EXPECT_EQ(applied(kForgetsAll, 2), 3.0f);
  EXPECT_EQ(applied(kForgetsAll, kInfinity), 3.0f);
  EXPECT_EQ(applied(kForgetsAll, std::nanf("")), 3.0f);
  EXPECT_EQ(applied(kKeepsAll, kInfinity), kInfinity);
}

// x + code x: the product rounds by u of itself, the sum by half a unit of its last place. The decay rounded first
// would be wrong by up to 2^-25, here by 0.49 2^-24, which x = 1.75 makes more than half a unit.
TEST_P(StepKernel, MapsOfWeakDecaysRoundTheStateOnce) {
  const std::vector<float> x(8, 1.75f), zero(8, 0.0f);
  std::vector<float> to(8);
  for (const float code : {-0.51f * 0x1p-24f, -1.51f * 0x1p-24f, -0x1p-30f, -1e-3f, -0.39f}) {
    GetParam()->affine(to.data(), {&code, 0}, x.data(), zero.data(), 1, 8);
    const double wanted = 1.75 * (1.0 + static_cast<double>(code));
    const double half_unit = std::ldexp(1.0, std::ilogb(wanted) - 24);
    for (const float y : to) EXPECT_LE(std::abs(y - wanted), half_unit + 1.75 * kUnit * -code) << code;
  }
}

// 1,024 chunks that each add 2^-40 to a state of 1, which its float32 would lose every time.
TEST_P(StepKernel, AScanGoesOnFromTheStateAsItIsUnlessToldOtherwise) {
  std::vector<double> run(8, 1.0);
  std::vector<float> slot(8);
  for (int chunk = 0; chunk < 1024; ++chunk) {
    std::fill(slot.begin(), slot.end(), 0x1p-40f);
    GetParam()->scan_step(slot.data(), run.data(), {&kKeepsAll, 0}, 1, 8, false);
  }
  for (const double state : run) EXPECT_EQ(state, 1 + 0x1p-30);
  std::fill(slot.begin(), slot.end(), 0x1p-40f);
  GetParam()->scan_step(slot.data(), run.data(), {&kKeepsAll, 0}, 1, 8, true);
  for (const double state : run) EXPECT_EQ(state, 1 + 0x1p-40);
  for (const float before : slot) EXPECT_EQ(before, 1.0f);
}

INSTANTIATE_TEST_SUITE_P(Kernels, StepKernel, testing::ValuesIn(usable_kernels().begin(), usable_kernels().end()),
                         [](const auto &which) { return which.param->id; });

}  // namespace
}  // namespace lasp::cpu
