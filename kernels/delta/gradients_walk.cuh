// What a walking warpgroup of the gradients' kernel does with a chunk (gradients_kernel.cuh has the formulas): the
// chain back to the state before it, scores, and its half of dq and dk.
#pragma once

#include "gradients_pairs.cuh"
#include "gradients_results.cuh"

namespace lasp::gpu::delta_hopper::gradients {

// kPairs: blocks of a cluster add up dq and dk of two heads.
template <typename T, bool kDecay, bool kDirect, bool kPairs>
struct Walker : Results<T, kDecay, kDirect> {
  using Base = Results<T, kDecay, kDirect>;
  using Base::add_beta_gradient, Base::store_pairs, Base::store, Base::store_d_v, Base::put_d_v,
      Base::store_rows_of;
  using Base::p, Base::place, Base::block, Base::half, Base::warp, Base::lane;
  using Base::shared, Base::row, Base::column, Base::lane_again;
  float s[64];

  // The chain: R before chunk n to R after it. Leaves R and dv in shared memory, and sums of Z E.
  __device__ __forceinline__ void walk(int n) {
    const uint32_t factors = block.factors(n), k = block.k(n), squares = shared(kSquares);
    float y[32], w[32];
    uint32_t d_o[16], x[16], x_low[16];
    {
      uint32_t high[32];
#pragma unroll
      for (int i = 0; i < 32; ++i) high[i] = pack<T>(s[2 * i], s[2 * i + 1]);
#pragma unroll
      for (int j = 0; j < 8; ++j) store_transposed(transposed_at(shared(kR) + half * kDim * 128, j), high + 4 * j);
      block.wait_full(block.buffer_k(n), n);
      wgmma_begin();
      multiply_rows<T>(y, high, k, false);
      wgmma_commit();
      block.wait_full(kBufferDO, n);
      block.wait_full(kBufferSquares, n);
#pragma unroll
      for (int j = 0; j < 4; ++j)
        load_matrices_transposed(reinterpret_cast<uint32_t(&)[4]>(d_o[4 * j]),
                                 transposed_at(shared(kDO) + half * kPanel, j));
      wgmma_begin();
      multiply_upper<T>(w, d_o, squares + 2 * kPanel, false);
      multiply_upper<T>(w, d_o, squares + 3 * kPanel);
      wgmma_commit();
      wgmma_wait<0>(y);
      pin(w);
    }
    if constexpr (kDecay) {
      by_token(factors + kToEnd, [&](int i, float2 f) {
        y[i] = fmaf(f.x, y[i], w[i]), y[i + 1] = fmaf(f.y, y[i + 1], w[i + 1]);
        y[i + 2] = fmaf(f.x, y[i + 2], w[i + 2]), y[i + 3] = fmaf(f.y, y[i + 3], w[i + 3]);
      });
    } else {
#pragma unroll
      for (int i = 0; i < 32; ++i) y[i] += w[i];
    }
    by_token(factors + kBeta, [&](int i, float2 f) {
      w[i] = f.x * y[i], w[i + 1] = f.y * y[i + 1], w[i + 2] = f.x * y[i + 2], w[i + 3] = f.y * y[i + 3];
    });
    split<T, 32>(w, x, x_low);
    wgmma_begin();
    multiply_upper<T>(y, x_low, squares);
    multiply_upper<T>(y, x, squares + kPanel);
    multiply_upper<T>(y, x, squares);
    wgmma_commit();
    float sum[32];
    if constexpr (kDecay) {
      by_token(factors + kToToken, [&](int i, float2 f) {
        const float2 upper = unpack<T>(d_o[i / 2]), lower = unpack<T>(d_o[i / 2 + 1]);
        d_o[i / 2] = pack<T>(f.x * upper.x, f.y * upper.y), d_o[i / 2 + 1] = pack<T>(f.x * lower.x, f.y * lower.y);
      });
    }
    block.wait_full(kBufferQ, n);
    wgmma_begin();
    multiply_tokens<T>(sum, d_o, shared(kQ), false);
    wgmma_commit();
    wgmma_wait<1>(y);
    block.free(kBufferSquares);
    block.wait_full(kBufferE, n);
    add_beta_gradient(y, n);
    by_token(factors + kBeta,
             [&](int i, float2 f) { y[i] *= f.x, y[i + 1] *= f.y, y[i + 2] *= f.x, y[i + 3] *= f.y; });
    if constexpr (kDirect) put_d_v(y, n);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      uint32_t d_v[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) d_v[i] = pack<T>(p.scale * y[8 * j + 2 * i], p.scale * y[8 * j + 2 * i + 1]);
      store_transposed(transposed_at(shared(kDV) + half * kPanel, j), d_v);
    }
    if constexpr (kDecay)
      by_token(factors + kToToken,
               [&](int i, float2 f) { y[i] *= f.x, y[i + 1] *= f.y, y[i + 2] *= f.x, y[i + 3] *= f.y; });
#pragma unroll
    for (int i = 0; i < 16; ++i) x[i] = pack<T>(-y[2 * i], -y[2 * i + 1]);
    const float whole = kDecay ? load_pair(factors + kWhole).x : 1;
    wgmma_begin();
    multiply_tokens<T>(sum, x, k, true);
    wgmma_commit();
    wgmma_wait<0>(sum);
    add<0>(sum, whole);
    wgmma_begin();
    multiply_tokens<T>(sum, d_o, shared(kQ) + kPanel, false);
    multiply_tokens<T>(sum, x, k + kPanel, true);
    wgmma_commit();
    wgmma_wait<0>(sum);
    add<32>(sum, whole);
  }
  template <int kFirst>
  __device__ __forceinline__ void add(const float (&sum)[32], float whole) {
#pragma unroll
    for (int i = 0; i < 32; ++i)
      s[kFirst + i] = kDecay ? fmaf(whole, s[kFirst + i], sum[i]) : s[kFirst + i] + sum[i];
  }

  // A score square: the first half's is Aq, the second's Ak. What rounding leaves out of it stays in `low`.
  __device__ __forceinline__ void score(int n, uint32_t (&low)[16]) {
    const uint32_t a = shared(half ? kDV : kDO), e = shared(kE), factors = block.factors(n);
    float y[32];
    wgmma_begin();
#pragma unroll
    for (int i = 0; i < 8; ++i)
      hopper::wgmma<T, false, false>(y, advance(tile_descriptor<128>(a + i / 4 * kPanel), i % 4 * 32),
                                     advance(tile_descriptor<128>(e + i / 4 * kPanel), i % 4 * 32), i > 0);
    wgmma_commit();
    const float factor = half ? -1.0f : p.scale;
    float sums[2] = {0, 0};
    if constexpr (kDecay)
      sums[0] = load_float(factors + delta_hopper::kSums + 4 * row()),
      sums[1] = load_float(factors + delta_hopper::kSums + 4 * (row() + 8));
    wgmma_wait<0>(y);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const int at = 8 * j + column();
      const float2 beta = load_pair(factors + kBeta + 4 * at);
      const float2 g = kDecay ? load_pair(factors + delta_hopper::kSums + 4 * at) : float2{0, 0};
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int i = row() + 8 * r - half;  // the last column that counts
        float f0 = factor * beta.x, f1 = factor * beta.y;
        if constexpr (kDecay) f0 *= exp2_fast(fminf(sums[r] - g.x, 0)), f1 *= exp2_fast(fminf(sums[r] - g.y, 0));
        y[4 * j + 2 * r] = at <= i ? y[4 * j + 2 * r] * f0 : 0;
        y[4 * j + 2 * r + 1] = at + 1 <= i ? y[4 * j + 2 * r + 1] * f1 : 0;
      }
    }
    uint32_t high[16];
    split<T, 32>(y, high, low);
    store_pairs(high, shared(kScores) + half * kPanel);
  }

  // y += A b or A^T b: A a square of scores, b this half's panel of k or q.
  template <bool kTransposed>
  __device__ __forceinline__ void multiply_scores(float (&y)[32], uint32_t square, uint32_t panel) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      hopper::wgmma<T, kTransposed, true>(y, advance(tile_descriptor<128>(square), i * (kTransposed ? 2048 : 32)),
                                          advance(tile_descriptor<128>(panel), i * 2048), true);
  }
  // y = tokens times this half's rows of a state.
  __device__ __forceinline__ void multiply_state(float (&y)[32], uint32_t tokens, uint32_t state) {
#pragma unroll
    for (int i = 0; i < 8; ++i)
      hopper::wgmma<T, false, false>(
          y, advance(tile_descriptor<128>(tokens + i / 4 * kPanel), i % 4 * 32),
          advance(tile_descriptor<128>(state + i / 4 * kDim * 128 + half * 64 * 128), i % 4 * 32), i > 0);
  }
  // Two elements of k or q at row r of lane `again` and columns 8j.
  __device__ __forceinline__ float2 element(uint32_t panel, int again, int r, int j) const {
    return unpack<T>(load_word(panel + swizzled(16 * warp + again / 4 + 8 * r, j) + again % 4 * 4));
  }
  // This thread's share of what the state adds to the last row of d_g.
  __device__ __forceinline__ float state_share(int n) {
    float share = 0;
    const uint32_t at = 16 * threadIdx.x;
#pragma unroll 1
    for (int i = 0; i < kState / 16 / kWalkers; ++i) {
      const uint4 x = load_shared_16(shared(kS) + at + i * 16 * kWalkers),
                  y = load_shared_16(shared(kR) + at + i * 16 * kWalkers);
      const float2 a0 = unpack<T>(x.x), a1 = unpack<T>(x.y), a2 = unpack<T>(x.z), a3 = unpack<T>(x.w);
      const float2 b0 = unpack<T>(y.x), b1 = unpack<T>(y.y), b2 = unpack<T>(y.z), b3 = unpack<T>(y.w);
      share += a0.x * b0.x + a0.y * b0.y + a1.x * b1.x + a1.y * b1.y + a2.x * b2.x + a2.y * b2.y + a3.x * b3.x +
               a3.y * b3.y;
    }
    return p.scale * load_float(block.factors(n) + kWhole) * share;
  }

  // This half's columns of dq and dk, and the rows of d_g.
  __device__ __forceinline__ void finish(int n, const uint32_t (&low)[16], float share) {
    const uint32_t factors = block.factors(n), k = block.k(n) + half * kPanel, q = shared(kQ) + half * kPanel,
                   a_q = shared(kScores), a_k = a_q + kPanel, low_q = shared(kR), low_k = low_q + kPanel;
    const int chunk = place.chunks - 1 - n;
    float d_row[32], d_col[32];
    wgmma_begin();
    multiply_state(d_row, shared(kDV), shared(kS));
    multiply_state(d_col, shared(kE), shared(kR));
    wgmma_commit();
    wgmma_wait<0>(d_row);
    pin(d_col);
    block.free(kBufferE);
    sync_walkers();  // nobody reads R any more: the scores' low part takes its place
    store_pairs(low, half ? low_k : low_q);
    float to_token[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) to_token[r] = load_float(factors + kToToken + 4 * (row() + 8 * r));
    {
      float to_end[2];
#pragma unroll
      for (int r = 0; r < 2; ++r)
        to_end[r] = p.scale * load_float(factors + kToEnd + 4 * (row() + 8 * r)) *
                    load_float(factors + kBeta + 4 * (row() + 8 * r));
#pragma unroll
      for (int i = 0; i < 32; ++i) d_row[i] *= -to_token[i / 2 % 2], d_col[i] *= to_end[i / 2 % 2];
    }
    const bool decay_gradient = kDecay && p.d_g;
    if (decay_gradient) {
      const int again = lane_again();
#pragma unroll
      for (int i = 0; i < 32; i += 2) {
        const float2 x = element(k, again, i / 2 % 2, i / 4);
        share += x.x * d_col[i] + x.y * d_col[i + 1];
      }
    }
    hopper::fence_async_proxy();
    sync_walkers();
    float d_q[32];
    wgmma_begin();
    multiply_state(d_q, shared(kDO), shared(kS));
    wgmma_commit();
    multiply_scores<false>(d_row, a_k, k);
    multiply_scores<false>(d_row, low_k, k);
    multiply_scores<true>(d_col, a_q, q);
    multiply_scores<true>(d_col, low_q, q);
    multiply_scores<true>(d_col, a_k, k);
    multiply_scores<true>(d_col, low_k, k);
    wgmma_commit();
    wgmma_wait<1>(d_q);
    block.free(kBufferDO), block.free(kBufferS);
#pragma unroll
    for (int i = 0; i < 32; ++i) d_q[i] *= p.scale * to_token[i / 2 % 2];
    wgmma_begin();
    multiply_scores<false>(d_q, a_q, k);
    multiply_scores<false>(d_q, low_q, k);
    wgmma_commit();
    wgmma_wait<0>(d_q);
    pin(d_row), pin(d_col);
    if (decay_gradient) {
      float rows[2] = {0, 0};
      const int again = lane_again();
#pragma unroll
      for (int i = 0; i < 32; i += 2) {
        const int r = i / 2 % 2;
        const float2 x = element(q, again, r, i / 4), y = element(k, again, r, i / 4);
        rows[r] +=
            x.x * d_q[i] + x.y * d_q[i + 1] + y.x * (d_row[i] - d_col[i]) + y.y * (d_row[i + 1] - d_col[i + 1]);
      }
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        rows[r] += __shfl_xor_sync(~0u, rows[r], 1);
        rows[r] += __shfl_xor_sync(~0u, rows[r], 2);
        if (lane % 4 == 0) store_float(block.sums(n) + kBetaSums + 256 * half + 4 * (row() + 8 * r), rows[r]);
      }
      share = sum_warp(share);
      if (lane == 0) store_float(block.sums(n) + kBetaSums + kRowSums + 4 * (4 * half + warp), share);
    }
#pragma unroll
    for (int i = 0; i < 32; ++i) d_row[i] += d_col[i];
    __syncwarp();
    if constexpr (kPairs) {
      sync_walkers();  // nobody reads the scores' low part any more
      const bool there = kDirect || half * kSlice < p.k.dim;
      if (Pair::finishes_keys()) {
        Pair{block}.add(d_row, d_q, n);
        if (there) store(p.d_k, 1, d_row, k, chunk);
      } else {
        Pair{block}.add(d_q, d_row, n);
        if (there) store(p.d_q, 0, d_q, q, chunk);
      }
    } else if (kDirect || half * kSlice < p.k.dim) {
      if constexpr (!kDirect) sync_half(half);  // q and k are read no more, and results go by way of them
      store(p.d_q, 0, d_q, q, chunk);
      store(p.d_k, 1, d_row, k, chunk);
    }
    block.free(kBufferQ), block.free(block.buffer_k(n));
  }

  // `columns`: Slots::columns. `partial`: d_g per head of each stretch, which this launch may add to.
  __device__ __forceinline__ void run(int32_t columns, float *partial, bool adds) {
    load_over_scale<T>(s, p, place, columns, half);
    float all = 0;
    for (int n = 0; n < place.chunks; ++n) {
      walk(n);
      hopper::fence_async_proxy();
      sync_walkers();  // R and dv are there
      if constexpr (!kDirect) store_d_v(n);
      block.wait_full(kBufferS, n);
      const float share = kDecay && p.d_g ? state_share(n) : 0;
      uint32_t low[16];
      score(n, low);
      hopper::fence_async_proxy();
      sync_walkers();  // scores are
      finish(n, low, share);
      sync_walkers();  // nobody reads R, dv and scores any more
      if constexpr (kPairs) Pair{block}.wait_taken(n);
      all += store_rows_of(n);
    }
    if (p.decay == Decay::kHead && p.d_g && threadIdx.x == 0) {
      float &to = partial[place.index * p.heads + place.head];
      to = adds ? to + all : all;
    }
  }
};

}  // namespace lasp::gpu::delta_hopper::gradients
