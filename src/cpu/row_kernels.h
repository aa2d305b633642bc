// Scaling and adding rows of tiles, and the steps of a state, for kernels.h.
#pragma once

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

void scan_step(float *slot, float *run, Factor factor, int64_t rows, int64_t cols) {
  for (int64_t r = 0; r < rows; ++r, slot += cols, run += cols) {
    const Vec f = splat(factor.value[r * factor.stride]);
    float decayed[kMostCols];  // through memory, so that no fused multiply-add skips the product's rounding
    for (int64_t c = 0; c < cols; c += kLanes) store(decayed + c, f * load(run + c));
    for (int64_t c = 0; c < cols; c += kLanes) {
      const Vec part = load(slot + c);
      store(slot + c, load(run + c));
      store(run + c, load(decayed + c) + part);
    }
  }
}

void decay_state(float *before, float *run, Factor factor, int64_t rows, int64_t cols, bool stream) {
  for (int64_t r = 0; r < rows; ++r, run += cols) {
    if (before != nullptr) {
      if (stream) {
        stream_row(before + r * cols, run, cols * 4);
      } else {
        for (int64_t c = 0; c < cols; c += kLanes) store(before + r * cols + c, load(run + c));
      }
    }
    const Vec f = splat(factor.value[r * factor.stride]);
    for (int64_t c = 0; c < cols; c += kLanes) store(run + c, f * load(run + c));
  }
  if (stream) stream_fence();
}

void affine(float *to, Factor factor, const float *x, const float *y, int64_t rows, int64_t cols) {
  for (int64_t r = 0; r < rows; ++r, to += cols, x += cols, y += cols) {
    const float one = factor.value[r * factor.stride];
    const Vec f = splat(one);
    if (one == 0) {
      if (to != y) {
        for (int64_t c = 0; c < cols; c += kLanes) store(to + c, load(y + c));
      }
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

// The product with the base is exact and the rest of a factor is small beside it: what is rounded is the new state,
// once, and not a factor near one, alike at every token.
template <bool kDecays>
LASP_INLINE void step_of(float *state, SplitFactor factor, const float *query, const float *key, const float *value,
                         float scale, float *out, int64_t rows, int64_t cols) {
  for (int64_t c = 0; c < cols; c += kLanes) store(out + c, Vec{});
  for (int64_t r = 0; r < rows; ++r, state += cols) {
    const Vec base = splat(kDecays ? factor.base[r * factor.stride] : 1.0f);
    const Vec rest = splat(kDecays ? factor.rest[r * factor.stride] : 0.0f);
    const Vec k = splat(key[r]), q = splat(query[r] * scale);
#pragma GCC unroll 2
    for (int64_t c = 0; c < cols; c += kLanes) {
      const Vec before = load(state + c), written = rounded(k * load(value + c));
      const Vec s = kDecays ? base * before + rounded(rest * before + written) : before + written;
      store(state + c, s);
      store(out + c, load(out + c) + q * s);
    }
  }
}

void step(float *state, SplitFactor factor, const float *query, const float *key, const float *value, float scale,
          float *out, int64_t rows, int64_t cols) {
  if (factor.rest != nullptr) {
    step_of<true>(state, factor, query, key, value, scale, out, rows, cols);
  } else {
    step_of<false>(state, factor, query, key, value, scale, out, rows, cols);
  }
}

}  // namespace
}  // namespace lasp::cpu
