// Products of matrices: the BLAS's own, whole or cut into pieces that it is fastest at, and the library's, are what
// the formula says, and touch nothing else.
#include "cpu/gemm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <tuple>
#include <vector>

#include "cpu/kernels.h"

namespace lasp::cpu {
namespace {

constexpr float kUntouched = 77;

// Whole numbers, so that every sum is exact in float32: of 512 terms of at most 9 * 2, twice. `padding`: columns
// between the rows.
struct Matrix {
  Matrix(int rows, int cols, uint32_t seed, int padding)
      : ld(cols + padding), data(static_cast<size_t>(rows) * ld, kUntouched) {
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

// The tables that have products of their own.
std::vector<const Kernels *> multiplying_kernels() {
  std::vector<const Kernels *> found;
  for (const Kernels *const table : usable_kernels())
    if (table->multiply != nullptr) found.push_back(table);
  return found;
}

enum class By { kGemm, kPieces, kKernels };

class Gemm : public testing::TestWithParam<std::tuple<Op, Op, By, int>> {};  // columns between rows

// Sizes on both sides of where a product is cut, with pieces that are left over in each direction.
TEST_P(Gemm, IsExactAndTouchesNothingElse) {
  const auto [op_a, op_b, by, padding] = GetParam();
  constexpr int kSizes[][3] = {{1, 8, 8},       {61, 128, 128}, {62, 128, 128},  {128, 128, 128}, {129, 136, 128},
                               {128, 257, 160}, {49, 200, 161}, {100, 128, 256}, {25, 72, 512},   {130, 65, 512},
                               {7, 16, 257},    {2, 9, 3},      {4, 32, 1}};
  const bool turn_a = op_a == Op::kTransposed, turn_b = op_b == Op::kTransposed;
  const auto tables = by == By::kKernels ? multiplying_kernels() : std::vector<const Kernels *>{nullptr};
  if (tables.empty()) GTEST_SKIP() << "no AVX2 here";
  for (const auto &[m, n, k] : kSizes) {
    for (const float beta : {0.0f, 1.0f, 0.5f}) {
      for (const Kernels *const table : tables) {
        Matrix a(turn_a ? k : m, turn_a ? m : k, 1, padding), b(turn_b ? n : k, turn_b ? k : n, 2, padding);
        Matrix c(m, n, 3, padding);
        if (beta == 0) c.at(m / 2, n / 2) = std::nanf("");  // is only written then
        Matrix before = c;
        const float *const a_at = a.data.data(), *const b_at = b.data.data();
        float *const c_at = c.data.data();
        if (by == By::kKernels) {
          table->multiply({turn_a, turn_b, m, n, k, 2, beta, a_at, b_at, c_at, a.ld, b.ld, c.ld});
        } else if (by == By::kPieces) {
          gemm_in_pieces(op_a, m, n, k, 2, a_at, a.ld, b_at, b.ld, beta, c_at, c.ld);
        } else {
          gemm(op_a, op_b, m, n, k, 2, a_at, a.ld, b_at, b.ld, beta, c_at, c.ld);
        }
        int wrong = 0;
        for (int i = 0; i < m; ++i) {
          for (int j = 0; j < n; ++j) {
            float sum = 0;
            for (int l = 0; l < k; ++l)
              sum += (turn_a ? a.at(l, i) : a.at(i, l)) * (turn_b ? b.at(j, l) : b.at(l, j));
            wrong += c.at(i, j) != 2 * sum + (beta == 0 ? 0 : beta * before.at(i, j));
          }
          for (int j = n; j < c.ld; ++j) wrong += c.at(i, j) != kUntouched;
        }
        EXPECT_EQ(wrong, 0) << m << " " << n << " " << k << " beta " << beta << " "
                            << (table != nullptr ? table->name : "");
      }
    }
  }
}

// Chains of few heads take some columns each, of many heads all. The states must have the same bits either way.
class ProductKernels : public testing::TestWithParam<std::tuple<bool, bool, int>> {};  // turned; between rows

TEST_P(ProductKernels, HaveTheSameBitsHoweverRowsAndColumnsAreCut) {
  const auto [turn_a, turn_b, padding] = GetParam();
  constexpr int kRows = 67, kCols = 93, kTerms = 300, kAt[] = {0, 1, 9, 40, 66};
  Matrix a(turn_a ? kTerms : kRows, turn_a ? kRows : kTerms, 1, padding);
  Matrix b(turn_b ? kCols : kTerms, turn_b ? kTerms : kCols, 2, padding), before(kRows, kCols, 3, 0);
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (Matrix *const each : {&a, &b, &before})
    for (float &x : each->data) x = normal(random);
  const auto tables = multiplying_kernels();
  if (tables.empty()) GTEST_SKIP() << "no AVX2 here";
  for (const Kernels *const table : tables) {
    for (const float beta : {0.0f, 1.0f, 0.3f}) {
      Matrix whole = before;
      const Product product{turn_a, turn_b, kRows,         kCols,         kTerms,
                            0.7f,   beta,   a.data.data(), b.data.data(), whole.data.data(),
                            a.ld,   b.ld,   whole.ld};
      table->multiply(product);
      for (const int row : kAt) {
        for (const int col : kAt) {
          Matrix part = before;
          Product rest = product;
          rest.m -= row, rest.n -= col;
          rest.a += turn_a ? row : row * a.ld, rest.b += turn_b ? col * b.ld : col, rest.c = &part.at(row, col);
          table->multiply(rest);
          int wrong = 0;
          for (int i = row; i < kRows; ++i)
            wrong += std::memcmp(&part.at(i, col), &whole.at(i, col), sizeof(float) * (kCols - col)) != 0;
          EXPECT_EQ(wrong, 0) << table->name << ", from row " << row << ", column " << col << ", beta " << beta;
        }
      }
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Cut, ProductKernels,
                         testing::Combine(testing::Bool(), testing::Bool(), testing::Values(0, 600)));

TEST(EmptyGemm, Scales) {
  for (const float beta : {0.0f, 1.0f}) {
    float c[4] = {1, 2, 3, 4};
    gemm(Op::kPlain, Op::kPlain, 2, 2, 0, 1, c, 2, c, 2, beta, c, 2);
    for (int i = 0; i < 4; ++i) EXPECT_EQ(c[i], beta * static_cast<float>(i + 1));
  }
}

constexpr Op kOps[] = {Op::kPlain, Op::kTransposed};
INSTANTIATE_TEST_SUITE_P(Whole, Gemm,
                         testing::Combine(testing::ValuesIn(kOps), testing::ValuesIn(kOps),
                                          testing::Values(By::kGemm), testing::Values(3)));
INSTANTIATE_TEST_SUITE_P(InPieces, Gemm,
                         testing::Combine(testing::ValuesIn(kOps), testing::Values(Op::kPlain),
                                          testing::Values(By::kPieces), testing::Values(3)));
// Rows that are near, and those that are far.
INSTANTIATE_TEST_SUITE_P(Own, Gemm,
                         testing::Combine(testing::ValuesIn(kOps), testing::ValuesIn(kOps),
                                          testing::Values(By::kKernels), testing::Values(0, 3, 600)));

}  // namespace
}  // namespace lasp::cpu
