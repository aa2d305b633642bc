// Decay per key channel, for kernels.h: a chunk is cut into blocks of 16 tokens; products of decays run inside a
// block only, from its first token or to its last, so that every factor is a product of numbers of at most 1.
#pragma once

#include "kernels.h"
#include "vec.h"

namespace lasp::cpu {
namespace {

void channel_products(const float *g, int64_t tokens, int64_t cols, float *step, float *head, float *tail,
                      double *block_log) {
  for (int64_t begin = 0; begin < tokens; begin += kBlock, block_log += cols) {
    const int64_t count = tokens - begin < kBlock ? tokens - begin : kBlock;
    for (int64_t c = 0; c < cols; c += kLanes) {
      const int64_t first = begin * cols + c;
      Vec a[kBlock];
      Vec product = splat(1.0f);
      DoubleVec log_lo{}, log_hi{};
      for (int64_t i = 0; i < count; ++i) {
        const Vec raw = load(g + first + i * cols);
        const Vec x = select(raw < kLowestLog, splat(kLowestLog), raw);
        log_lo += widen(low(x));
        log_hi += widen(high(x));
        a[i] = exp(x);
        if (head != nullptr) {
          product = product * a[i];
          store(step + first + i * cols, a[i]);
          store(head + first + i * cols, product);
        }
      }
      store_as(block_log + c, log_lo);
      store_as(block_log + c + 4, log_hi);
      product = splat(1.0f);
      for (int64_t i = count - 1; i >= 0; --i) {
        store(tail + first + i * cols, product);
        product = product * a[i];
      }
    }
  }
}

void scale_channels(float *to, const float *from, int64_t from_ld, const float *product, const float *by,
                    int64_t tokens, int64_t cols) {
  for (int64_t i = 0; i < tokens; ++i, to += cols, from += from_ld, product += cols) {
    const float *block = by == nullptr ? nullptr : by + i / kBlock * cols;
    for (int64_t c = 0; c < cols; c += kLanes) {
      const Vec f = block == nullptr ? load(product + c) : load(product + c) * load(block + c);
      store(to + c, load(from + c) * f);
    }
  }
}

void add_channels(float *sum, const float *from, const float *by, int64_t tokens, int64_t cols) {
  for (int64_t i = 0; i < tokens; ++i, sum += cols, from += cols) {
    for (int64_t c = 0; c < cols; c += kLanes) {
      const Vec x = load(from + c);
      store(sum + c, load(sum + c) + (by == nullptr ? x : x * load(by + c)));
    }
  }
}

// The scores of `kCount` neighbouring keys with one query; their decayed keys move on by one token.
template <int kCount>
LASP_INLINE void decayed_dots(float *score, const float *q, const float *a, float *keys, float scale,
                              int64_t cols) {
  Vec dot[kCount] = {};
  for (int64_t c = 0; c < cols; c += kLanes) {
    const Vec step = load(a + c), query = load(q + c);
    for (int u = 0; u < kCount; ++u) {
      const Vec key = load(keys + u * cols + c) * step;
      store(keys + u * cols + c, key);
      dot[u] = dot[u] + query * key;
    }
  }
  for (int u = 0; u < kCount; ++u) score[u] = scale * sum(dot[u]);
}

void block_scores(float *score, int64_t score_ld, const float *q, int64_t q_ld, const float *k, int64_t k_ld,
                  const float *step, float scale, int64_t tokens, int64_t cols, float *work) {
  for (int64_t i = 0; i < tokens; ++i) {
    const float *query = q + i * q_ld, *key = k + i * k_ld, *a = step + i * cols;
    float *row = score + i * score_ld;
    int64_t j = 0;
    for (; j + 4 <= i; j += 4) decayed_dots<4>(row + j, query, a, work + j * cols, scale, cols);
    for (; j < i; ++j) decayed_dots<1>(row + j, query, a, work + j * cols, scale, cols);
    Vec dot{};
    for (int64_t c = 0; c < cols; c += kLanes) {
      const Vec x = load(key + c);
      store(work + i * cols + c, x);
      dot = dot + load(query + c) * x;
    }
    row[i] = scale * sum(dot);
    for (j = i + 1; j < tokens; ++j) row[j] = 0;
  }
}

void block_gradients(const float *p, int64_t p_ld, const float *q, int64_t q_ld, const float *k, int64_t k_ld,
                     const float *step, float *dq, float *dk, int64_t tokens, int64_t cols) {
  for (int64_t c = 0; c < cols; c += kLanes) {
    Vec decayed[kBlock];  // keys on the way down, queries on the way up
    for (int64_t i = 0; i < tokens; ++i) {
      const Vec a = load(step + i * cols + c);
      const float *row = p + i * p_ld;
      Vec total = load(dq + i * cols + c);
      for (int64_t j = 0; j < i; ++j) {
        decayed[j] = decayed[j] * a;
        total = total + decayed[j] * row[j];
      }
      store(dq + i * cols + c, total);
      decayed[i] = load(k + i * k_ld + c);
    }
    for (int64_t j = tokens - 2; j >= 0; --j) {
      const Vec a = load(step + (j + 1) * cols + c);
      decayed[j + 1] = load(q + (j + 1) * q_ld + c);
      Vec total = load(dk + j * cols + c);
      for (int64_t i = j + 1; i < tokens; ++i) {
        decayed[i] = decayed[i] * a;
        total = total + decayed[i] * p[i * p_ld + j];
      }
      store(dk + j * cols + c, total);
    }
  }
}

void channel_local(const ChannelLocal &x, int64_t tokens, int64_t cols) {
  for (int64_t c = 0; c < cols; ++c) x.run[c] = 0;
  for (int64_t t = tokens - 1; t >= 0; --t) {
    const float *q = x.q + t * x.q_ld, *k = x.k + t * x.k_ld;
    const float *dq = x.dq + t * cols, *dk = x.dk + t * cols;
    float *out_dq = x.out_dq + t * x.out_dq_ld, *out_dk = x.out_dk + t * x.out_dk_ld;
    const Vec p = splat(x.p[t * x.p_ld + t]);
    for (int64_t c = 0; c < cols; c += kLanes) {
      const Vec qc = load(q + c), kc = load(k + c), dqc = load(dq + c), dkc = load(dk + c);
      const Vec read = x.dk_read == nullptr ? Vec{} : load(x.dk_read + t * cols + c);
      if (x.dg != nullptr) {
        float *dg = x.dg + t * x.dg_ld + c;
        const Vec sum = load(x.run + c) + (qc * dqc - kc * (dkc - read));
        store(x.run + c, sum);
        store(dg, x.add_dg ? load(dg) + sum : sum);
      }
      store(out_dq + c, (x.add_dq ? load(out_dq + c) : Vec{}) + (dqc + p * kc));
      store(out_dk + c, (x.add_dk ? load(out_dk + c) : Vec{}) + ((dkc + read) + p * qc));
    }
  }
}

void channel_incoming(const ChannelIncoming &x, int64_t tokens, int64_t cols) {
  for (int64_t t = 0; t < tokens; ++t) {
    const float *k = x.k + t * x.k_ld, *from = x.from + t * cols, *tail = x.tail + t * cols;
    const float *by = x.by + t / kBlock * cols;
    float *out_dk = x.out_dk + t * x.out_dk_ld;
    for (int64_t c = 0; c < cols; c += kLanes) {
      const Vec dk = load(from + c) * (load(tail + c) * load(by + c));
      store(out_dk + c, load(out_dk + c) + dk);
      if (x.dg != nullptr) {
        float *dg = x.dg + t * x.dg_ld + c;
        const Vec run = load(x.run + c);
        store(dg, load(dg) + run);
        store(x.run + c, run + load(k + c) * dk);
      }
    }
  }
}

}  // namespace
}  // namespace lasp::cpu
