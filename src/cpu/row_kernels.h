// Scaling and adding rows of tiles, and the steps of a state, for kernels.h.
#pragma once

#include "core/decay.h"
#include "kernels.h"
#include "stream.h"
#include "vec.h"

namespace lasp::cpu {
namespace {

void scale_rows(float *to, int64_t to_ld, const float *from, int64_t from_ld, const float *by, int64_t rows,
                int64_t cols) {
  for (int64_t i = 0; i < rows; ++i, to += to_ld, from += from_ld) {
    const Vec f = splat(by[i]);
    for (int64_t c = 0; c < cols; c += kLanes) store(to + c, load(from + c) * f);
  }
}

// Pairs of the first two numbers of each four, or of the last two.
LASP_INLINE DoubleVec zip_first(const Vec &a, const Vec &b) {
  return reinterpret_cast<DoubleVec>(__builtin_shufflevector(a, b, 0, 8, 1, 9, 4, 12, 5, 13));
}
LASP_INLINE DoubleVec zip_last(const Vec &a, const Vec &b) {
  return reinterpret_cast<DoubleVec>(__builtin_shufflevector(a, b, 2, 10, 3, 11, 6, 14, 7, 15));
}

// Four columns of eight rows. In each of x lie four numbers of a row, and then those of the fourth row after it.
LASP_INLINE void transpose_four(float *to, int64_t to_ld, const Vec (&x)[4]) {
  const DoubleVec first = zip_first(x[0], x[1]), first2 = zip_first(x[2], x[3]);
  const DoubleVec last = zip_last(x[0], x[1]), last2 = zip_last(x[2], x[3]);
  store_as(to, __builtin_shufflevector(first, first2, 0, 4, 2, 6));
  store_as(to + to_ld, __builtin_shufflevector(first, first2, 1, 5, 3, 7));
  store_as(to + 2 * to_ld, __builtin_shufflevector(last, last2, 0, 4, 2, 6));
  store_as(to + 3 * to_ld, __builtin_shufflevector(last, last2, 1, 5, 3, 7));
}

void transpose(float *to, int64_t to_ld, const float *from, int64_t from_ld, int64_t rows, int64_t cols) {
  for (int64_t i = 0; i < rows; i += 8) {
    for (int64_t c = 0; c < cols; c += 4) {
      HalfVec half[8];
      for (int64_t u = 0; u < 8; ++u)
        half[u] = i + u < rows ? load_as<HalfVec>(from + (i + u) * from_ld + c) : HalfVec{};
      Vec x[4];
      for (int u = 0; u < 4; ++u) x[u] = __builtin_shufflevector(half[u], half[u + 4], 0, 1, 2, 3, 4, 5, 6, 7);
      transpose_four(to + c * to_ld + i, to_ld, x);
    }
  }
}

template <bool kAdd>
LASP_INLINE void add_rows_of(float *to, int64_t to_ld, const float *from, int64_t from_ld, const float *by,
                             const float *with, int64_t with_ld, double *dots, int64_t rows, int64_t cols) {
  for (int64_t i = 0; i < rows; ++i, to += to_ld, from += from_ld) {
    const Vec f = splat(by != nullptr ? by[i] : 1.0f);
    Vec dot{};
    for (int64_t c = 0; c < cols; c += kLanes) {
      const Vec x = rounded(load(from + c) * f);  // the same sum whether or not the dots are asked for
      if (with != nullptr) dot = dot + x * load(with + i * with_ld + c);
      store(to + c, kAdd ? load(to + c) + x : x);
    }
    if (with != nullptr) dots[i] = sum(widen(low(dot)) + widen(high(dot)));
  }
}

void add_rows(float *to, int64_t to_ld, bool add, const float *from, int64_t from_ld, const float *by,
              const float *with, int64_t with_ld, double *dots, int64_t rows, int64_t cols) {
  if (add) {
    add_rows_of<true>(to, to_ld, from, from_ld, by, with, with_ld, dots, rows, cols);
  } else {
    add_rows_of<false>(to, to_ld, from, from_ld, by, with, with_ld, dots, rows, cols);
  }
}

void scan_step(float *slot, double *run, Factor factor, int64_t rows, int64_t cols, bool from_slot) {
  for (int64_t r = 0; r < rows; ++r, slot += cols, run += cols) {
    const double decay = decay_value(factor.code[r * factor.stride]);
    const DoubleVec f = splat(decay);
    for (int64_t c = 0; c < cols; c += kLanes) {
      const Vec part = load(slot + c);
      DoubleVec lo = load_as<DoubleVec>(run + c), hi = load_as<DoubleVec>(run + c + 4);
      const Vec before = narrow(lo, hi);
      store(slot + c, before);
      if (from_slot) lo = widen(low(before)), hi = widen(high(before));
      store_as(run + c, f * lo + widen(low(part)));
      store_as(run + c + 4, f * hi + widen(high(part)));
    }
  }
}

void affine(float *to, Factor factor, const float *x, const float *y, int64_t rows, int64_t cols) {
  for (int64_t r = 0; r < rows; ++r, to += cols, x += cols, y += cols) {
    const float code = factor.code[r * factor.stride];
    const Vec f = splat(code);
    if (forgets_all(code)) {
      if (to != y) {
        for (int64_t c = 0; c < cols; c += kLanes) store(to + c, load(y + c));
      }
    } else if (code == 0) {
      for (int64_t c = 0; c < cols; c += kLanes) store(to + c, load(x + c) + load(y + c));
    } else if (std::signbit(code)) {
      for (int64_t c = 0; c < cols; c += kLanes) store(to + c, load(x + c) + (f * load(x + c) + load(y + c)));
    } else {
      for (int64_t c = 0; c < cols; c += kLanes) store(to + c, f * load(x + c) + load(y + c));
    }
  }
}

void row_dots(double *dots, const float *a, const float *b, int64_t rows, int64_t cols) {
  for (int64_t r = 0; r < rows; ++r, a += cols, b += cols) {
    Vec dot{};
    for (int64_t c = 0; c < cols; c += kLanes) dot = dot + load(a + c) * load(b + c);
    dots[r] = sum(widen(low(dot)) + widen(high(dot)));
  }
}

enum class TokenDecay { kNone, kWeak, kStrong };

// One row. Of a weak decay, what is rounded is the new state, once, and not a factor near 1, alike at every token.
template <TokenDecay kDecay>
LASP_INLINE void step_row(float *state, float code, float query, float key, const float *value, float *out,
                          int64_t cols) {
  const Vec f = splat(code), k = splat(key), q = splat(query);
#pragma GCC unroll 2
  for (int64_t c = 0; c < cols; c += kLanes) {
    const Vec before = load(state + c), written = rounded(k * load(value + c));
    Vec s = written;
    if (kDecay != TokenDecay::kNone) s = rounded(f * before + written);
    if (kDecay != TokenDecay::kStrong) s = before + s;
    store(state + c, s);
    store(out + c, load(out + c) + q * s);
  }
}

void step(float *state, Factor factor, const float *query, const float *key, const float *value, float scale,
          float *out, int64_t rows, int64_t cols) {
  for (int64_t c = 0; c < cols; c += kLanes) store(out + c, Vec{});
  for (int64_t r = 0; r < rows; ++r, state += cols) {
    const float code = factor.code[r * factor.stride], q = query[r] * scale;
    if (code == 0 && std::signbit(code)) {
      step_row<TokenDecay::kNone>(state, code, q, key[r], value, out, cols);
    } else if (std::signbit(code)) {
      step_row<TokenDecay::kWeak>(state, code, q, key[r], value, out, cols);
    } else {
      step_row<TokenDecay::kStrong>(state, code, q, key[r], value, out, cols);
    }
  }
}

}  // namespace
}  // namespace lasp::cpu
