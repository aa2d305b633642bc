// The elementwise kernels of the CPU backend, on every instruction set this machine can run: exponentials, element
// types and affine maps, whose corners the backend's own tests would not meet.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "cpu/kernels.h"

namespace lasp::cpu {
namespace {

class CpuKernels : public testing::TestWithParam<const Kernels *> {
 protected:
  float exp_of(double x) const {
    double in[8];
    std::fill_n(in, 8, x);
    float out[8];
    GetParam()->exp_doubles(out, in, 8);
    for (const float y : out) EXPECT_TRUE(y == out[0] || std::isnan(y));
    return out[0];
  }
  std::vector<uint16_t> to_half(const std::vector<float> &x, DType type) const {
    std::vector<uint16_t> y(x.size());
    GetParam()->store_rows(y.data(), 0, x.data(), 0, 1, static_cast<int64_t>(x.size()), type, false);
    return y;
  }
  std::vector<float> to_float(const std::vector<uint16_t> &x, DType type) const {
    std::vector<float> y(x.size());
    GetParam()->load_rows(y.data(), 0, x.data(), 0, 1, static_cast<int64_t>(x.size()), type);
    return y;
  }
};

TEST_P(CpuKernels, ExponentialIsExactWhereItMustBe) {
  EXPECT_EQ(exp_of(0), 1.0f);
  // The float nearest to ln 2 is 1.9e-9 too large: n times that stays below half a unit in the last place up to 15.
  for (int n = 1; n <= 15; ++n)
    EXPECT_EQ(exp_of(n * -static_cast<double>(0.693147182f)), std::ldexp(1.0f, -n)) << n;
}

TEST_P(CpuKernels, ExponentialIsWithinAUnitAndAHalfInTheLastPlace) {
  for (double x = -87.3; x < 88.7; x += 0.00437) {
    const double want = std::exp(x);
    const double unit = std::ldexp(1.0, std::ilogb(want) - 23);
    ASSERT_LE(std::abs(exp_of(x) - want), 1.5 * unit) << x;
  }
}

// The decay of one token comes from float32 alone. Its reduction rounds once, |r| <= ln 2 / 2: a quarter of a unit
// more at most, and the sum above has as much left.
TEST_P(CpuKernels, ExponentialOfOneTokenIsAsExact) {
  for (float x = -87.3f; x <= 0; x += 0.00437f) {
    const std::vector<float> g(8, x);
    std::vector<float> step(8), head(8), tail(8);
    std::vector<double> log(8);
    GetParam()->channel_products(g.data(), 1, 8, step.data(), head.data(), tail.data(), log.data());
    const double want = std::exp(static_cast<double>(x));
    ASSERT_LE(std::abs(step[0] - want), 1.5 * std::ldexp(1.0, std::ilogb(want) - 23)) << x;
  }
}

TEST_P(CpuKernels, ExponentialEndsInZeroAndInfinity) {
  for (const double x : {-87.4, -104.0, -1e4, -1e30, -std::numeric_limits<double>::infinity()})
    EXPECT_EQ(exp_of(x), 0);
  for (const double x : {88.8, 1e4, std::numeric_limits<double>::infinity()}) EXPECT_TRUE(std::isinf(exp_of(x)));
  EXPECT_TRUE(std::isnan(exp_of(std::nan(""))));
}

// Every 16-bit number goes to float32 and back unchanged, and means what the format says.
TEST_P(CpuKernels, SixteenBitNumbersSurviveTheRoundTrip) {
  std::vector<uint16_t> all(65536);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
  for (const DType type : {DType::kBFloat16, DType::kFloat16}) {
    const int fraction_bits = type == DType::kBFloat16 ? 7 : 10, bias = type == DType::kBFloat16 ? 127 : 15;
    const std::vector<float> x = to_float(all, type);
    const std::vector<uint16_t> back = to_half(x, type);
    for (size_t i = 0; i < all.size(); ++i) {
      const int exponent = static_cast<int>(i & 0x7fff) >> fraction_bits, fraction = i & ((1 << fraction_bits) - 1);
      if (exponent == 2 * bias + 1 && fraction != 0) {
        EXPECT_TRUE(std::isnan(x[i])) << i;
        EXPECT_GT(back[i] & 0x7fff, (2 * bias + 1) << fraction_bits) << i;  // still a NaN
        continue;
      }
      const double size = exponent == 2 * bias + 1 ? std::numeric_limits<double>::infinity()
                          : exponent == 0
                              ? std::ldexp(fraction, 1 - bias - fraction_bits)
                              : std::ldexp(fraction + (1 << fraction_bits), exponent - bias - fraction_bits);
      EXPECT_EQ(x[i], i >= 0x8000 ? -size : size) << i;
      EXPECT_EQ(back[i], all[i]);
    }
  }
}

// Between two neighbours the nearer is taken, in the middle the even one; past the largest there is infinity.
TEST_P(CpuKernels, RoundsToNearestEven) {
  for (const DType type : {DType::kBFloat16, DType::kFloat16}) {
    const int largest = type == DType::kBFloat16 ? 0x7f7f : 0x7bff;
    for (int i = 0; i < largest; i += 7) {  // eight numbers have seven gaps
      std::vector<uint16_t> pair(8);
      for (int j = 0; j < 8; ++j) pair[j] = static_cast<uint16_t>(std::min(i + j, largest));
      const std::vector<float> x = to_float(pair, type);
      std::vector<float> middle(8), below(8), above(8);
      for (int j = 0; j < 8; ++j) {
        const float next = j + 1 < 8 ? x[j + 1] : x[j];
        middle[j] = static_cast<float>((static_cast<double>(x[j]) + next) / 2);
        below[j] = std::nextafter(middle[j], 0.0f);
        above[j] = std::nextafter(middle[j], INFINITY);
      }
      const auto at_middle = to_half(middle, type), at_below = to_half(below, type),
                 at_above = to_half(above, type);
      for (int j = 0; j < 7 && pair[j] + 1 == pair[j + 1]; ++j) {
        EXPECT_EQ(at_middle[j], pair[j] % 2 == 0 ? pair[j] : pair[j + 1]) << pair[j];
        EXPECT_EQ(at_below[j], pair[j]) << pair[j];
        EXPECT_EQ(at_above[j], pair[j + 1]) << pair[j];
      }
    }
    const auto over = to_half({3.4e38f, -3.4e38f, INFINITY, -INFINITY, 0.0f, -0.0f, 1.0f, NAN}, type);
    const auto infinity = static_cast<uint16_t>(type == DType::kBFloat16 ? 0x7f80 : 0x7c00);
    if (type == DType::kFloat16) {
      EXPECT_EQ(over[0], infinity);
      EXPECT_EQ(over[1], infinity | 0x8000);
    }
    EXPECT_EQ(over[2], infinity);
    EXPECT_EQ(over[3], infinity | 0x8000);
    EXPECT_EQ(over[4], 0);
    EXPECT_EQ(over[5], 0x8000);
    EXPECT_GT(over[7] & 0x7fff, infinity);
  }
}

// All NaNs of float32 that have one bit of their payload, those whose bit a 16-bit number has no room for included.
TEST_P(CpuKernels, EveryNaNStaysOneAndKeepsItsSign) {
  for (const DType type : {DType::kBFloat16, DType::kFloat16}) {
    const int infinity = type == DType::kBFloat16 ? 0x7f80 : 0x7c00;
    for (const uint32_t sign : {0u, 0x80000000u}) {
      std::vector<uint32_t> bits;
      for (int bit = 0; bit < 23; ++bit) bits.push_back(sign | 0x7f800000u | 1u << bit);
      bits.push_back(sign | 0x7fffffffu);
      std::vector<float> x(bits.size());
      std::memcpy(x.data(), bits.data(), 4 * bits.size());
      const std::vector<uint16_t> rounded = to_half(x, type);
      for (size_t i = 0; i < bits.size(); ++i) {
        EXPECT_GT(rounded[i] & 0x7fff, infinity) << std::hex << bits[i] << " became " << rounded[i];
        EXPECT_EQ(rounded[i] >> 15, sign >> 31) << std::hex << bits[i];
      }
    }
  }
}

// to = factor * x + y: a factor of zero forgets x, whatever x is; one row's factor is not another's.
TEST_P(CpuKernels, AnAffineMapWithAFactorOfZeroForgets) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr int kRows = 3, kCols = 16;
  for (const float worst : {kInfinity, -kInfinity, std::nanf("")}) {
    for (const bool in_place : {false, true}) {
      std::vector<float> x(kRows * kCols, worst), y(kRows * kCols), to(kRows * kCols, 77.0f);
      for (size_t i = 0; i < y.size(); ++i) y[i] = static_cast<float>(i);
      std::fill_n(x.begin() + kCols, kCols, 2.0f);  // the middle row goes on
      const std::vector<float> wanted_y = y, factor = {0.0f, 0.5f, 0.0f};
      float *const out = in_place ? y.data() : to.data();
      GetParam()->affine(out, {factor.data(), 1}, x.data(), y.data(), kRows, kCols);
      for (int i = 0; i < kRows * kCols; ++i)
        EXPECT_EQ(out[i], wanted_y[i] + (i / kCols == 1 ? 1.0f : 0.0f)) << i << (in_place ? " in place" : "");
    }
    std::vector<float> x(8, worst), y(8, 1.0f), to(8);
    const float one = 1.0f;
    GetParam()->affine(to.data(), {&one, 0}, x.data(), y.data(), 1, 8);
    for (const float sum : to) EXPECT_FALSE(std::isfinite(sum)) << "what does not forget hands on " << worst;
  }
}

// Rows that fill no square are filled up with zeros, and of the room beyond nothing is touched.
TEST_P(CpuKernels, TransposesAnyNumberOfRows) {
  constexpr int kCols = 24, kFromLd = 29, kToLd = 40;
  for (const int rows : {1, 7, 8, 9, 31, 32}) {
    std::vector<float> from(static_cast<size_t>(rows) * kFromLd), to(kCols * kToLd, 77.0f);
    for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<float>(i + 1);
    GetParam()->transpose(to.data(), kToLd, from.data(), kFromLd, rows, kCols);
    for (int c = 0; c < kCols; ++c) {
      for (int i = 0; i < kToLd; ++i) {
        const float wanted = i < rows ? from[i * kFromLd + c] : i < (rows + 7) / 8 * 8 ? 0 : 77;
        EXPECT_EQ(to[c * kToLd + i], wanted) << rows << " rows, at " << i << ", " << c;
      }
    }
  }
}

#if defined(__x86_64__)
std::string usable_with(const ProcessorFeatures &features) {
  std::string names;
  for (const Kernels *kernels : kernels_for(features)) names += std::string(kernels->id) + " ";
  return names;
}

// Bits as Intel's and AMD's manuals number them. What a processor has and its system does not save is not used.
TEST(CpuKernelsChoice, NeedsEachFeatureAndItsRegistersSaved) {
  constexpr uint32_t kFma = 1u << 12, kXsave = 1u << 27, kAvx = 1u << 28, kF16c = 1u << 29;
  constexpr uint32_t kAvx2 = 1u << 5, kF = 1u << 16, kDq = 1u << 17, kBw = 1u << 30, kVl = 1u << 31;
  constexpr uint32_t kSaved = 0xe7;
  const ProcessorFeatures all = {kFma | kXsave | kAvx | kF16c, kAvx2 | kF | kDq | kBw | kVl, kSaved};
  EXPECT_EQ(usable_with(all), "avx512 avx2 portable ");
  for (const uint32_t without : {kFma, kXsave, kAvx, kF16c})
    EXPECT_EQ(usable_with({all.basic & ~without, all.extended, kSaved}), "portable ") << without;
  EXPECT_EQ(usable_with({all.basic, all.extended & ~kAvx2, kSaved}), "portable ");
  for (const uint32_t without : {kF, kDq, kBw, kVl})
    EXPECT_EQ(usable_with({all.basic, all.extended & ~without, kSaved}), "avx2 portable ") << without;
  for (const uint32_t bit : {2u, 4u})
    EXPECT_EQ(usable_with({all.basic, all.extended, kSaved & ~bit}), "portable ") << bit;
  for (const uint32_t bit : {0x20u, 0x40u, 0x80u})
    EXPECT_EQ(usable_with({all.basic, all.extended, kSaved & ~bit}), "avx2 portable ") << bit;
  EXPECT_EQ(usable_with({}), "portable ");
}
#endif

INSTANTIATE_TEST_SUITE_P(All, CpuKernels, testing::ValuesIn(usable_kernels().begin(), usable_kernels().end()),
                         [](const auto &which) { return which.param->id; });

}  // namespace
}  // namespace lasp::cpu
