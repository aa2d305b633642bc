// What a walking warpgroup of the gradients' kernel does with a chunk (gradients_kernel.cuh has the formulas): the
// chain back to the state before it, scores, and its half of dq and dk.
#pragma once

#include "gradients_rows.cuh"

namespace lasp::gpu::delta_hopper::gradients {

// kPairs: blocks of a cluster add up dq and dk of two heads. kLong: of more than a stretch. Then products on the
// chain take R and what it gains in two parts, as reversed.cu's do; what one part leaves out would add up.
template <typename T, bool kDecay, bool kDirect, bool kPairs, bool kLong>
struct Walker : Results<T, kDecay, kDirect> {
  using Base = Results<T, kDecay, kDirect>;
  using Base::p, Base::place, Base::block, Base::half, Base::warp, Base::lane;
  using Base::shared, Base::row, Base::column;
  using Base::store_pairs, Base::load_rows, Base::store, Base::store_d_v, Base::put_d_v;
  static constexpr bool kColumns = kPairs && kLong;  // pairs may be of one head's columns
  float s[64];

  // Until a buffer has chunk n of a tensor.
  __device__ __forceinline__ void wait_tensor(int buffer, int n) const {
    block.wait_full(buffer, n, place.by_threads);
  }

  // The chain: R before chunk n to R after it. Leaves R, Z and dv in shared memory. Returns this thread's
  // share of what the state adds to the last row of d_g.
  __device__ __forceinline__ float walk(int n) {
    const uint32_t factors = block.factors(n), k = block.k(n);
    float y[32], w[32], share = 0;
    uint32_t d_o[16], x[16], x_low[16];
    {
      uint32_t high[32];
      [[maybe_unused]] uint32_t low[32];
      if constexpr (kLong) {
        split<T, 64>(s, high, low);
      } else {
#pragma unroll
        for (int i = 0; i < 32; ++i) high[i] = pack<T>(s[2 * i], s[2 * i + 1]);
      }
#pragma unroll
      for (int j = 0; j < 8; ++j) store_transposed(transposed_at(shared(kR) + half * kDim * 128, j), high + 4 * j);
      wait_tensor(block.buffer_k(n), n);
      wgmma_begin();
      if constexpr (kLong) {
        delta_hopper::multiply_state<T>(y, high, low, k);
      } else {
        multiply_rows<T>(y, high, k, false);
      }
      wgmma_commit();
      wait_tensor(kBufferDO, n);
      block.wait_full(kBufferPairs, n);
#pragma unroll
      for (int j = 0; j < 4; ++j)
        load_matrices_transposed(reinterpret_cast<uint32_t(&)[4]>(d_o[4 * j]),
                                 transposed_at(shared(kDO) + half * kPanel, j));
      wgmma_begin();
      multiply_upper_of<T, false>(w, d_o, shared(kP), false);
      multiply_upper_of<T, true>(w, d_o, shared(kP));
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
    multiply_upper<T>(y, x, x_low, shared(kN));
    wgmma_commit();
    if (kDecay && p.d_g) share = state_share(n);
    if constexpr (kDecay) {
      by_token(factors + kToToken, [&](int i, float2 f) {
        const float2 upper = unpack<T>(d_o[i / 2]), lower = unpack<T>(d_o[i / 2 + 1]);
        d_o[i / 2] = pack<T>(f.x * upper.x, f.y * upper.y), d_o[i / 2 + 1] = pack<T>(f.x * lower.x, f.y * lower.y);
      });
    }
    wgmma_wait<0>(y);
    block.free(kBufferPairs);
    store_tokens(y, shared(kZ) + half * kPanel);
    leave_d_v(y, factors, n);
    if constexpr (kLong) {
      split<T, 32>(y, x, x_low);
    } else {
#pragma unroll
      for (int i = 0; i < 16; ++i) x[i] = pack<T>(y[2 * i], y[2 * i + 1]);
    }
    const float whole = kDecay ? load_pair(factors + kWhole).x : 1;
    float sum[32];
    wait_tensor(kBufferQ, n);  // only now: it is the last to be free for this chunk
    const auto multiply = [&](int panel) {
      wgmma_begin();
      multiply_tokens<T>(sum, d_o, shared(kQ) + panel, false);
      multiply_tokens<T>(sum, x, k + panel, true);
      if constexpr (kLong) multiply_tokens<T>(sum, x_low, k + panel, true);
      wgmma_commit();
      wgmma_wait<0>(sum);
    };
    multiply(0);
    add<0>(sum, whole);
    multiply(kPanel);
    add<32>(sum, whole);
    return share;
  }
  // y rounded, to a panel whose rows are y's columns.
  __device__ __forceinline__ void store_tokens(const float (&y)[32], uint32_t panel) {
    const uint32_t at = transposed_again();
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      uint32_t x[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) x[i] = pack<T>(y[8 * j + 2 * i], y[8 * j + 2 * i + 1]);
      store_transposed(panel + at + 2048 * j, x);
    }
  }
  // dv = scale beta Z, to its panel or to memory; and what it takes from R, -2^G beta Z, in place of Z.
  __device__ __forceinline__ void leave_d_v(float (&z)[32], uint32_t factors, int n) {
    const uint32_t at = shared(kToDV) + half * kPanel + transposed_again(),
                   of_token = factors + kBeta + threadIdx.x % 4 * 8;
    if constexpr (kDirect) {
      by_token(factors + kBeta,
               [&](int i, float2 f) { z[i] *= f.x, z[i + 1] *= f.y, z[i + 2] *= f.x, z[i + 3] *= f.y; });
      put_d_v(z, n);
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      uint32_t d_v[4];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int i = 8 * j + 4 * h;
        const float2 beta = kDirect ? float2{1, 1} : load_pair(of_token + 8 * i),
                     to_v = {p.scale * beta.x, p.scale * beta.y},
                     to_token = kDecay ? load_pair(of_token + kToToken - kBeta + 8 * i) : float2{1, 1},
                     back = {-beta.x * to_token.x, -beta.y * to_token.y};
        if constexpr (!kDirect)
          d_v[2 * h] = pack<T>(to_v.x * z[i], to_v.y * z[i + 1]),
                  d_v[2 * h + 1] = pack<T>(to_v.x * z[i + 2], to_v.y * z[i + 3]);
        z[i] *= back.x, z[i + 1] *= back.y, z[i + 2] *= back.x, z[i + 3] *= back.y;
      }
      if constexpr (!kDirect) store_transposed(at + 2048 * j, d_v);
    }
  }
  // As transposed_at(0, 0), in a way that keeps the compiler from holding addresses in registers.
  static __device__ __forceinline__ uint32_t transposed_again() {
    const int thread = this_thread(), lane = thread % 32;
    return swizzled(lane / 16 * 8 + lane % 8, 2 * (thread / 32) + lane / 8 % 2);
  }
  // scale 2^G_C <S, R> of this thread's elements of R, as it was before the chunk is walked.
  __device__ __forceinline__ float state_share(int n) const {
    block.wait_full(kBufferS, n);
    float share[2] = {0, 0};
    const uint32_t at = transposed_again();
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      uint32_t x[4];
      load_matrices_transposed(x, shared(kS) + half * kDim * 128 + 2048 * j + at);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 y = unpack<T>(x[i]);
        share[0] = fmaf(y.x, s[8 * j + 2 * i], share[0]), share[1] = fmaf(y.y, s[8 * j + 2 * i + 1], share[1]);
      }
    }
    return p.scale * load_float(block.factors(n) + kWhole) * (share[0] + share[1]);
  }
  template <int kFirst>
  __device__ __forceinline__ void add(const float (&sum)[32], float whole) {
#pragma unroll
    for (int i = 0; i < 32; ++i)
      s[kFirst + i] = kDecay ? fmaf(whole, s[kFirst + i], sum[i]) : s[kFirst + i] + sum[i];
  }

  // A score square: the first half's is Aq, the second's Ak, from Z E^T, whose diagonal has d_beta over scale. What
  // rounding leaves out of it stays in `low`.
  __device__ __forceinline__ void score(int n, uint32_t (&low)[16]) {
    const uint32_t e = shared(kE), factors = block.factors(n);
    uint32_t a = shared(half ? kZ : kDO);
    asm volatile("" : "+r"(a));  // or its descriptors wait in registers from chunk to chunk
    float y[32];
    wgmma_begin();
#pragma unroll
    for (int i = 0; i < 8; ++i)
      hopper::wgmma<T, false, false>(y, advance(tile_descriptor<128>(a + i / 4 * kPanel), i % 4 * 32),
                                     advance(tile_descriptor<128>(e + i / 4 * kPanel), i % 4 * 32), i > 0);
    wgmma_commit();
    const int own = row(), first = column();
    const float factors_of_rows[2] = {half ? -p.scale * load_float(factors + kBeta + 4 * own) : p.scale,
                                      half ? -p.scale * load_float(factors + kBeta + 4 * (own + 8)) : p.scale};
    float sums[2] = {0, 0};
    if constexpr (kDecay)
      sums[0] = load_float(factors + delta_hopper::kSums + 4 * own),
      sums[1] = load_float(factors + delta_hopper::kSums + 4 * (own + 8));
    wgmma_wait<0>(y);
    if (half) {  // the diagonal, by the lane that has it
      if constexpr (kColumns) Pair{block}.wait_sums(place, n);
      const int again = Base::lane_again();
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const int r = j % 2;
        if (j / 2 == own / 16 && again % 4 == again / 8)
          store_float(block.sums(n) + 4 * (own + 8 * r), again / 4 % 2 ? y[4 * j + 2 * r + 1] : y[4 * j + 2 * r]);
      }
    }
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const int at = 8 * j + first;
      const float2 beta = load_pair(factors + kBeta + 4 * at);
      const float2 g = kDecay ? load_pair(factors + delta_hopper::kSums + 4 * at) : float2{0, 0};
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int i = own + 8 * r - half;  // the last column that counts
        float f0 = factors_of_rows[r] * beta.x, f1 = factors_of_rows[r] * beta.y;
        if constexpr (kDecay) f0 *= exp2_fast(sums[r] - g.x), f1 *= exp2_fast(sums[r] - g.y);
        y[4 * j + 2 * r] = at <= i ? y[4 * j + 2 * r] * f0 : 0;
        y[4 * j + 2 * r + 1] = at + 1 <= i ? y[4 * j + 2 * r + 1] * f1 : 0;
      }
    }
    uint32_t high[16];
    split<T, 32>(y, high, low);
    if constexpr (!kDirect) {  // dv lies there
      wait_stored();
      sync_half(half);
    }
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

  // This half's columns of dq and dk, and the rows of d_g.
  __device__ __forceinline__ void finish(int n, const uint32_t (&low)[16], float share) {
    const uint32_t factors = block.factors(n), k = block.k(n) + half * kPanel, q = shared(kQ) + half * kPanel,
                   a_q = shared(kScores), a_k = a_q + kPanel, low_q = shared(kR), low_k = low_q + kPanel;
    const int chunk = place.chunks - 1 - n;
    float d_row[32], d_col[32];
    wgmma_begin();
    multiply_state(d_row, shared(kZ), shared(kS));
    multiply_state(d_col, shared(kE), shared(kR));
    wgmma_commit();
    wgmma_wait<0>(d_row);
    pin(d_col);
    block.free(kBufferE);
    sync_walkers();  // nobody reads R and Z any more: the scores' low part takes R's place
    store_pairs(low, half ? low_k : low_q);
    const int own = row();
    float to_token[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) to_token[r] = load_float(factors + kToToken + 4 * (own + 8 * r));
    {
      float of_row[2], of_column[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float beta = load_float(factors + kBeta + 4 * (own + 8 * r));
        of_row[r] = -p.scale * to_token[r] * beta;
        of_column[r] = p.scale * load_float(factors + kToEnd + 4 * (own + 8 * r)) * beta;
      }
#pragma unroll
      for (int i = 0; i < 32; ++i) d_row[i] *= of_row[i / 2 % 2], d_col[i] *= of_column[i / 2 % 2];
    }
    const bool decay_gradient = kDecay && p.d_g;
    if (decay_gradient) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        uint32_t of_k[4];
        load_rows(of_k, k, j);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float2 x = unpack<T>(of_k[i]);
          share += x.x * d_col[8 * j + 2 * i] + x.y * d_col[8 * j + 2 * i + 1];
        }
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
    const bool there = half * kSlice < p.k.dim;
    if constexpr (!kPairs && !kDirect)
      if (there) store(p.d_q, 0, d_q, shared(kToDQ) + half * kPanel, chunk);
    float rows[2] = {0, 0};
    if (decay_gradient) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        uint32_t of_q[4], of_k[4];
        load_rows(of_q, q, j);
        load_rows(of_k, k, j);
#pragma unroll
        for (int m = 0; m < 4; ++m) {
          const float2 x = unpack<T>(of_q[m]), y = unpack<T>(of_k[m]);
          const int i = 8 * j + 2 * m;
          rows[m % 2] +=
              x.x * d_q[i] + x.y * d_q[i + 1] + y.x * (d_row[i] - d_col[i]) + y.y * (d_row[i + 1] - d_col[i + 1]);
        }
      }
    }
    block.free(kBufferQ), block.free(block.buffer_k(n));
#pragma unroll
    for (int i = 0; i < 32; ++i) d_row[i] += d_col[i];
    if constexpr (kPairs) {
      sync_walkers();  // nobody reads the scores' low part any more
      if (Pair::finishes_keys()) {
        Pair{block}.add(d_row, d_q, n);
        if (there) store(p.d_k, 1, d_row, shared(kToDK) + half * kPanel, chunk);
      } else {
        Pair{block}.add(d_q, d_row, n);
        if (there) store(p.d_q, 0, d_q, shared(kToDK) + half * kPanel, chunk);
      }
    } else {
      if constexpr (kDirect) store(p.d_q, 0, d_q, 0, chunk);
      if (kDirect || there) store(p.d_k, 1, d_row, shared(kToDK) + half * kPanel, chunk);
    }
    if (decay_gradient) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        rows[r] += __shfl_xor_sync(~0u, rows[r], 1);
        rows[r] += __shfl_xor_sync(~0u, rows[r], 2);
        if (lane % 4 == 0) store_float(block.sums(n) + kBetaSums + 256 * half + 4 * (row() + 8 * r), rows[r]);
      }
      share = sum_warp(share);
      if (lane == 0) store_float(block.sums(n) + kBetaSums + kRowSums + 4 * (4 * half + warp), share);
    }
    if (kColumns && Pair::is_second_of_columns(place)) {
      Pair{block}.offer_sums(n);
    } else {
      hopper::barrier_arrive(block.sums_full(n));
    }
    wait_stored();
  }

  // From R after the last chunk, in s, to R before the first.
  __device__ __forceinline__ void run() {
    for (int n = 0; n < place.chunks; ++n) {
      const float share = walk(n);
      hopper::fence_async_proxy();
      sync_walkers();  // R, Z and dv are there
      if constexpr (!kDirect) store_d_v(n, shared(kToDV));
      block.wait_full(kBufferE, n);
      block.wait_full(kBufferS, n);
      uint32_t low[16];
      score(n, low);
      hopper::fence_async_proxy();
      sync_walkers();  // scores are
      finish(n, low, share);
      sync_walkers();  // nobody reads R, Z and scores any more
      if constexpr (kPairs) Pair{block}.wait_taken(n);
    }
  }
};

}  // namespace lasp::gpu::delta_hopper::gradients
