// Exponentials of decay sums, and rows of the lower-triangular score matrix, for kernels.h.
#pragma once

#include "kernels.h"
#include "vec.h"

namespace lasp::cpu {
namespace {

void exp_doubles(float *to, const double *x, int64_t count) {
  for (int64_t j = 0; j < count; j += kLanes) {
    store(to + j, exp(load_as<DoubleVec>(x + j), load_as<DoubleVec>(x + j + 4)));
  }
}

void exp_differences(float *to, double at, const double *sums, int64_t count) {
  const DoubleVec from = splat(at);
  for (int64_t j = 0; j < count; j += kLanes) {
    store(to + j, exp(from - load_as<DoubleVec>(sums + j), from - load_as<DoubleVec>(sums + j + 4)));
  }
}

void decay_codes(float *to, const double *x, int64_t count) {
  for (int64_t j = 0; j < count; j += kLanes) {
    store(to + j, decay_code(load_as<DoubleVec>(x + j), load_as<DoubleVec>(x + j + 4)));
  }
}

// Lanes of the vector at column j that lie at or left of the diagonal of row i.
LASP_INLINE IntVec up_to(int64_t i, int64_t j) { return lane_index() <= static_cast<int32_t>(i - j); }

LASP_INLINE void zero_from(float *row, int64_t j, int64_t end) {
  for (; j < end; j += kLanes) store(row + j, Vec{});
}

void mask_row(float *score, const float *decay, int64_t i, int64_t end) {
  int64_t j = 0;
  if (decay != nullptr) {
    for (; j + kLanes <= i + 1; j += kLanes) store(score + j, load(score + j) * load(decay + j));
  } else {
    j = (i + 1) / kLanes * kLanes;
  }
  if (j <= i) {
    const Vec d = decay != nullptr ? load(decay + j) : splat(1.0f);
    store(score + j, select(up_to(i, j), load(score + j) * d, Vec{}));
    j += kLanes;
  }
  zero_from(score, j, end);
}

template <bool kDecay, bool kSums>
LASP_INLINE double gradient_row_of(float *score, float *grad, const float *decay, float scale, int64_t i,
                                   int64_t end, float *column_sums) {
  DoubleVec total{};
  const Vec s = splat(scale);
  for (int64_t j = 0; j <= i; j += kLanes) {
    const bool whole = j + kLanes <= i;  // strictly left of the diagonal: nothing to mask
    Vec a = load(score + j), p = load(grad + j), w;
    if (kDecay) {
      const Vec d = load(decay + j);
      a = a * d;
      w = p * a;
      p = p * (d * s);
    } else {
      w = p * a;
      p = p * s;
    }
    if (!whole) {
      const IntVec keep = up_to(i, j);
      a = select(keep, a, Vec{});
      p = select(keep, p, Vec{});
      w = select(up_to(i - 1, j), w, Vec{});
    }
    store(score + j, a);
    store(grad + j, p);
    if (kSums) {
      Vec c = load(column_sums + j) + w;
      store(column_sums + j, c);
      if (!whole) c = select(up_to(i - 1, j), c, Vec{});
      total = total + (widen(low(c)) + widen(high(c)));
    }
  }
  const int64_t rest = i / kLanes * kLanes + kLanes;
  zero_from(score, rest, end);
  zero_from(grad, rest, end);
  return sum(total);
}

double gradient_row(float *score, float *grad, const float *decay, float scale, int64_t i, int64_t end,
                    float *column_sums) {
  if (decay == nullptr) return gradient_row_of<false, false>(score, grad, decay, scale, i, end, column_sums);
  if (column_sums == nullptr) return gradient_row_of<true, false>(score, grad, decay, scale, i, end, column_sums);
  return gradient_row_of<true, true>(score, grad, decay, scale, i, end, column_sums);
}

}  // namespace
}  // namespace lasp::cpu
