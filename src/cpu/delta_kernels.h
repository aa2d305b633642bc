// The triangular inverse of the delta rule, and rows of its score matrices, for kernels.h.
#pragma once

#include "kernels.h"
#include "score_kernels.h"
#include "vec.h"

namespace lasp::cpu {
namespace {

// T = I - (a diag(beta)) T, row by row, sixteen columns at a time in registers. A row needs the rows above it only
// from its columns' own block on: further up they are zero there.
void solve(float *to, const float *a, int64_t ld, const float *beta, int64_t n, int64_t block, double *work) {
  constexpr int64_t kWide = 16;
  double *const by = work + n * ld;
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < i; ++j) by[j] = double{a[i * ld + j]} * double{beta[j]};
    double *const row = work + i * ld;
    for (int64_t c = 0; c <= i; c += kWide) {
      DoubleVec sums[4] = {};
      for (int64_t j = c; j < i; ++j) {
        const DoubleVec f = splat(by[j]);
        for (int64_t u = 0; u < 4; ++u) sums[u] -= f * load_as<DoubleVec>(work + j * ld + c + 4 * u);
      }
      for (int64_t u = 0; u < 4; ++u) store_as(row + c + 4 * u, sums[u]);
    }
    row[i] = 1;
    const int64_t end = i / kWide * kWide + kWide;
    for (int64_t c = 0; c < end; c += kLanes)
      store(to + i * ld + c, narrow(load_as<DoubleVec>(row + c), load_as<DoubleVec>(row + c + 4)));
    for (int64_t c = end; c < (i / block + 1) * block && c < ld; c += kLanes) store(to + i * ld + c, Vec{});
  }
}

double pair_row(const float *score, float *grad, const float *decay, float scale, int64_t i, int64_t end,
                float *column_sums) {
  DoubleVec total{};
  for (int64_t j = 0; j <= i; j += kLanes) {
    const bool whole = j + kLanes <= i;
    const Vec d = splat(scale) * (decay != nullptr ? load(decay + j) : splat(1.0f));
    const Vec p = load(grad + j);
    store(grad + j, whole ? p * d : select(up_to(i, j), p * d, Vec{}));
    if (column_sums == nullptr) continue;
    Vec w = p * load(score + j);
    if (!whole) w = select(up_to(i - 1, j), w, Vec{});
    Vec c = load(column_sums + j) + w;
    store(column_sums + j, c);
    if (!whole) c = select(up_to(i - 1, j), c, Vec{});
    total = total + (widen(low(c)) + widen(high(c)));
  }
  zero_from(grad, i / kLanes * kLanes + kLanes, end);
  return sum(total);
}

void weighted_rows(float *to, const float *state, const float *by, int64_t rows, int64_t cols) {
  for (int64_t c = 0; c < cols; c += kLanes) {
    Vec total{};
    for (int64_t r = 0; r < rows; ++r) total = total + splat(by[r]) * load(state + r * cols + c);
    store(to + c, total);
  }
}

}  // namespace
}  // namespace lasp::cpu
