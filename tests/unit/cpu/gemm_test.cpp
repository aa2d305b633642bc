// Products of matrices: the BLAS's own, whole or cut into pieces that it is fastest at, are what the formula says,
// and touch nothing else.
#include "cpu/gemm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <tuple>
#include <vector>

namespace lasp::cpu {
namespace {

constexpr int kPadding = 3;  // columns between the rows of a matrix
constexpr float kUntouched = 77;

// Whole numbers, so that every sum is exact in float32: of 512 terms of at most 9 * 2, twice.
struct Matrix {
  Matrix(int rows, int cols, uint32_t seed)
      : ld(cols + kPadding), data(static_cast<size_t>(rows) * ld, kUntouched) {
    for (int r = 0; r < rows; ++r)
      for (int c = 0; c < cols; ++c) {
        seed = seed * 1664525u + 1013904223u;
        at(r, c) = static_cast<float>(static_cast<int>(seed >> 29) - 3);
      }
  }
  float &at(int r, int c) { return data[static_cast<size_t>(r) * ld + c]; }
  int ld;
  std::vector<float> data;
};

class Gemm : public testing::TestWithParam<std::tuple<Op, Op, bool>> {};  // in pieces

// Sizes on both sides of where a product is cut, with pieces that are left over in each direction.
TEST_P(Gemm, IsExactAndTouchesNothingElse) {
  const auto [op_a, op_b, pieces] = GetParam();
  constexpr int kSizes[][3] = {{1, 8, 8},       {61, 128, 128}, {62, 128, 128},  {128, 128, 128}, {129, 136, 128},
                               {128, 257, 160}, {49, 200, 161}, {100, 128, 256}, {25, 72, 512},   {130, 65, 512}};
  for (const auto &[m, n, k] : kSizes) {
    for (const float beta : {0.0f, 1.0f}) {
      const bool turn_a = op_a == Op::kTransposed, turn_b = op_b == Op::kTransposed;
      Matrix a(turn_a ? k : m, turn_a ? m : k, 1), b(turn_b ? n : k, turn_b ? k : n, 2), c(m, n, 3);
      if (beta == 0) c.at(m / 2, n / 2) = std::nanf("");  // is only written then
      Matrix before = c;
      if (pieces) {
        gemm_in_pieces(op_a, m, n, k, 2, a.data.data(), a.ld, b.data.data(), b.ld, beta, c.data.data(), c.ld);
      } else {
        gemm(op_a, op_b, m, n, k, 2, a.data.data(), a.ld, b.data.data(), b.ld, beta, c.data.data(), c.ld);
      }
      int wrong = 0;
      for (int i = 0; i < m; ++i) {
        for (int j = 0; j < n; ++j) {
          float sum = 0;
          for (int l = 0; l < k; ++l)
            sum += (turn_a ? a.at(l, i) : a.at(i, l)) * (turn_b ? b.at(j, l) : b.at(l, j));
          wrong += c.at(i, j) != 2 * sum + (beta == 0 ? 0 : before.at(i, j));
        }
        for (int j = n; j < c.ld; ++j) wrong += c.at(i, j) != kUntouched;
      }
      EXPECT_EQ(wrong, 0) << m << " " << n << " " << k << " beta " << beta;
    }
  }
}

TEST(EmptyGemm, Scales) {
  for (const float beta : {0.0f, 1.0f}) {
    float c[4] = {1, 2, 3, 4};
    gemm(Op::kPlain, Op::kPlain, 2, 2, 0, 1, c, 2, c, 2, beta, c, 2);
    for (int i = 0; i < 4; ++i) EXPECT_EQ(c[i], beta * static_cast<float>(i + 1));
  }
}

INSTANTIATE_TEST_SUITE_P(Whole, Gemm,
                         testing::Combine(testing::Values(Op::kPlain, Op::kTransposed),
                                          testing::Values(Op::kPlain, Op::kTransposed), testing::Values(false)));
INSTANTIATE_TEST_SUITE_P(InPieces, Gemm,
                         testing::Combine(testing::Values(Op::kPlain, Op::kTransposed), testing::Values(Op::kPlain),
                                          testing::Values(true)));

}  // namespace
}  // namespace lasp::cpu
