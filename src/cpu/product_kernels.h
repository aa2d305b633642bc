// Products of matrices that stay in the caches, for kernels.h. A BLAS copies both operands of a product before it
// multiplies. At our sizes that takes up to a third of the time. Here b alone is copied, and only where it is
// transposed, its rows lie far apart (how far depends on how many tiles read them), or fewer than 16 columns are
// left.
#pragma once

#include <algorithm>

#include "kernels.h"
#include "row_kernels.h"
#include "vec.h"

namespace lasp::cpu {
namespace {

#if defined(LASP_OWN_PRODUCTS)

// 6 x 16 numbers of c and 16 of b take 14 of 16 registers, and each load of b serves six rows.
constexpr int kTileRows = 6, kTileCols = 16;
constexpr int kTerms = 256;  // the most of one panel, 16 columns of b: 16 KiB, half of a first cache
// A panel of rows that are kSparseRows floats apart, or a multiple of it, does not stay in a first cache: its lines
// fall into an eighth of the sets or less. Where kManyRows rows of a or more are multiplied by it, a copy pays.
// Rows at other distances from there on are copied as well; 128, 256 and 512 were measured.
constexpr int64_t kSparseRows = 128;
constexpr int kManyRows = 8 * kTileRows;

template <bool kTurnA, int kRows>
LASP_INLINE void multiply_tile(const Product &p, const float *a, const float *b, int64_t ldb, float *c,
                               int64_t ldc) {
  Vec sums[kRows][2] = {};
  const auto term = [&](int64_t l) __attribute__((always_inline)) {
    const Vec left = load(b), right = load(b + kLanes);
    b += ldb;
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
      const Vec x = splat(kTurnA ? a[l * p.lda + r] : a[r * p.lda + l]);
      sums[r][0] = x * left + sums[r][0];
      sums[r][1] = x * right + sums[r][1];
    }
  };
  if (kTurnA && p.lda >= kFarRows) {  // slower by eights
    for (int l = 0; l < p.k; ++l) term(l);
  } else {  // a loop of 128 turns has more branches to guess
#pragma GCC unroll 8
    for (int l = 0; l < p.k; ++l) term(l);
  }
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r, c += ldc) {
    for (int half = 0; half < 2; ++half) {
      const Vec x = rounded(sums[r][half] * p.alpha);
      store(c + half * kLanes, p.beta == 0 ? x : p.beta * load(c + half * kLanes) + x);
    }
  }
}

template <bool kTurnA>
LASP_INLINE void multiply_rows(const Product &p, int rows, const float *a, const float *b, int64_t ldb, float *c,
                               int64_t ldc) {
  switch (rows) {
    case 6: return multiply_tile<kTurnA, 6>(p, a, b, ldb, c, ldc);
    case 5: return multiply_tile<kTurnA, 5>(p, a, b, ldb, c, ldc);
    case 4: return multiply_tile<kTurnA, 4>(p, a, b, ldb, c, ldc);
    case 3: return multiply_tile<kTurnA, 3>(p, a, b, ldb, c, ldc);
    case 2: return multiply_tile<kTurnA, 2>(p, a, b, ldb, c, ldc);
    default: return multiply_tile<kTurnA, 1>(p, a, b, ldb, c, ldc);
  }
}

// A tile with fewer columns than 16: c's are copied there and back, so that they are added up as in a whole one.
template <bool kTurnA>
LASP_INLINE void multiply_edge(const Product &p, int rows, int cols, const float *a, const float *panel, float *c) {
  float tile[kTileRows * kTileCols] = {};
  for (int r = 0; p.beta != 0 && r < rows; ++r)
    std::memcpy(tile + r * kTileCols, c + r * p.ldc, sizeof(float) * cols);
  multiply_rows<kTurnA>(p, rows, a, panel, kTileCols, tile, kTileCols);
  for (int r = 0; r < rows; ++r) std::memcpy(c + r * p.ldc, tile + r * kTileCols, sizeof(float) * cols);
}

// panel [k, 16] = `cols` columns of op(b) from `b` on, and zeros.
LASP_INLINE void lay_panel(const Product &p, float *panel, const float *b, int cols) {
  if (p.turn_b) {
    const int whole = p.k / 4 * 4;
    if (cols <= 8) std::fill(panel, panel + p.k * kTileCols, 0.0f);
    transpose(panel, kTileCols, b, p.ldb, cols, whole);
    for (int l = whole; l < p.k; ++l)
      for (int j = 0; j < kTileCols; ++j) panel[l * kTileCols + j] = j < cols ? b[j * p.ldb + l] : 0;
  } else if (cols == kTileCols) {
    for (int l = 0; l < p.k; ++l) {
      store(panel + l * kTileCols, load(b + l * p.ldb));
      store(panel + l * kTileCols + kLanes, load(b + l * p.ldb + kLanes));
    }
  } else {
    for (int l = 0; l < p.k; ++l)
      for (int j = 0; j < kTileCols; ++j) panel[l * kTileCols + j] = j < cols ? b[l * p.ldb + j] : 0;
  }
}

template <bool kTurnA>
void multiply_terms(const Product &p) {
  alignas(64) float panel[kTerms * kTileCols];
  const int tiles = (p.m + kTileRows - 1) / kTileRows;
  for (int j = 0; j < p.n; j += kTileCols) {
    const int cols = std::min(kTileCols, p.n - j);
    const bool laid = p.turn_b || cols < kTileCols || p.ldb >= (p.m >= kManyRows ? kSparseRows : kFarRows);
    if (laid) lay_panel(p, panel, p.b + (p.turn_b ? j * p.ldb : int64_t{j}), cols);
    const float *const b = laid ? panel : p.b + j;
    for (int tile = 0, row = 0; tile < tiles; ++tile) {
      const int rows = (p.m - row) / (tiles - tile);  // as even as they go: a tile of 5 rows is as fast as one of 6
      const float *const a = p.a + (kTurnA ? int64_t{row} : row * p.lda);
      float *const c = p.c + row * p.ldc + j;
      if (cols == kTileCols) {
        multiply_rows<kTurnA>(p, rows, a, b, laid ? kTileCols : p.ldb, c, p.ldc);
      } else {
        multiply_edge<kTurnA>(p, rows, cols, a, b, c);
      }
      row += rows;
    }
  }
}

void multiply(const Product &whole) {
  Product p = whole;
  for (int from = 0; from == 0 || from < whole.k; from += kTerms) {
    p.k = std::min(kTerms, whole.k - from);
    p.a = whole.a + (p.turn_a ? from * p.lda : int64_t{from});
    p.b = whole.b + (p.turn_b ? int64_t{from} : from * p.ldb);
    p.turn_a ? multiply_terms<true>(p) : multiply_terms<false>(p);
    p.beta = 1;
  }
}

#else

constexpr void (*multiply)(const Product &) = nullptr;

#endif

}  // namespace
}  // namespace lasp::cpu
