// Decays as the engine keeps them: powers of a per-head decay, and the code that does not round near 1.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "core/decay.h"

namespace lasp {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(HeadDecay, HalfIsExactForEveryPower) {
  const float g = -std::log(2.0f);
  for (int64_t n = 0; n <= 149; ++n) EXPECT_EQ(head_decay_power(g, n), std::ldexp(1.0f, static_cast<int>(-n))) << n;
  EXPECT_EQ(head_decay_power(g, int64_t{1} << 40), 0.0f);
}

TEST(HeadDecay, OthersAreRoundedOnce) {
  for (const float g : {-1e-6f, -0.1f, -0.84f, -3.7f, -60.0f})
    for (const int64_t n : {1, 2, 3, 17, 128, 1000}) {
      const double exact = std::exp(static_cast<double>(g) * static_cast<double>(n));
      EXPECT_NEAR(head_decay_power(g, n), exact, exact * 0x1p-24 + 0x1p-150) << g << ' ' << n;
    }
  EXPECT_EQ(head_decay_power(0.0f, 1000), 1.0f);
  EXPECT_EQ(head_decay_power(-INFINITY, 0), 1.0f);
  EXPECT_EQ(head_decay_power(-INFINITY, 1), 0.0f);
}

// The part that a weak decay takes away is kept to float32's last place; a strong decay is.
TEST(DecayCode, HoldsTheDecayAsExactlyAsItMatters) {
  for (double log = -1e-12; log > -87; log *= 1.07) {
    const float code = decay_code(log);
    if (log > -0.5) {
      EXPECT_TRUE(std::signbit(code)) << log;
      EXPECT_NEAR(code / std::expm1(log), 1.0, 0x1p-24) << log;
    } else {
      EXPECT_FALSE(std::signbit(code)) << log;
      EXPECT_NEAR(code / std::exp(log), 1.0, 0x1p-24) << log;
    }
    EXPECT_NEAR(decay_value(code) / std::exp(log), 1.0, 0x1p-24) << log;
  }
}

TEST(DecayCode, AtItsEnds) {
  EXPECT_EQ(decay_value(kKeepsAll), 1.0);
  EXPECT_EQ(decay_value(kForgetsAll), 0.0);
  EXPECT_TRUE(forgets_all(kForgetsAll));
  EXPECT_FALSE(forgets_all(kKeepsAll));
  EXPECT_EQ(decay_value(decay_code(0.0)), 1.0);
  EXPECT_TRUE(std::signbit(decay_code(0.0)));
  for (const double log : {-87.4, -1e4, -double{kInfinity}}) EXPECT_TRUE(forgets_all(decay_code(log))) << log;
  EXPECT_EQ(decay_value(decay_code(-std::log(2.0))), 0.5);
  EXPECT_NEAR(decay_value(decay_code(3.0)), std::exp(3.0), std::exp(3.0) * 0x1p-24);  // growth
  EXPECT_TRUE(std::isnan(decay_value(decay_code(std::nan("")))));
}

// A million equal decays in a row, by pairs: what is lost is the last place of the codes on the way, not a million
// times that of a factor near 1.
TEST(DecayCode, ComposesWithoutDrift) {
  for (const double log : {-1e-9, -3e-8, -1e-6, -2e-5}) {
    float code = decay_code(log);
    for (int doublings = 0; doublings < 20; ++doublings) code = compose_decays(code, code);
    const double wanted = std::expm1(log * 0x1p20);
    // Each of 21 roundings is 2^-24 of the part taken away so far, whose share of the last is at most 1.
    EXPECT_NEAR((decay_value(code) - 1) / wanted, 1.0, 21 * 0x1p-24 * -log * 0x1p20 / -wanted) << log;
  }
}

TEST(DecayCode, ComposesWhatForgetsAndWhatKeeps) {
  const float weak = decay_code(-1e-6), strong = decay_code(-3.0);
  for (const float code : {weak, strong, kKeepsAll, kForgetsAll}) {
    EXPECT_EQ(compose_decays(code, kKeepsAll), code) << code;
    EXPECT_EQ(compose_decays(kKeepsAll, code), code) << code;
    EXPECT_TRUE(forgets_all(compose_decays(code, kForgetsAll))) << code;
    EXPECT_TRUE(forgets_all(compose_decays(kForgetsAll, code))) << code;
  }
  EXPECT_TRUE(std::signbit(compose_decays(kKeepsAll, kKeepsAll)));
  EXPECT_NEAR(compose_decays(weak, strong) / std::exp(-3.000001), 1.0, 0x1p-23);
  EXPECT_NEAR(compose_decays(decay_code(-0.3), decay_code(-0.4)) / std::exp(-0.7), 1.0, 0x1p-23);
}

TEST(HeadDecay, CodesAreOfTheSamePowers) {
  const float half = -std::log(2.0f);
  for (int64_t n = 1; n <= 126; ++n)
    EXPECT_EQ(head_decay_code(half, n), std::ldexp(1.0f, static_cast<int>(-n))) << n;
  for (const float g : {-1e-9f, -1e-6f, -1e-3f, -0.1f, -0.84f})
    for (const int64_t n : {1, 17, 128, 1000, 1000000})
      EXPECT_EQ(head_decay_code(g, n), decay_code(static_cast<double>(g) * static_cast<double>(n)))
          << g << " " << n;
  EXPECT_EQ(decay_value(head_decay_code(-kInfinity, 0)), 1.0);
  EXPECT_TRUE(forgets_all(head_decay_code(-kInfinity, 1)));
}

}  // namespace
}  // namespace lasp
