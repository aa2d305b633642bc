// What a warp does for the gradients of q, k and g of 16 channels of a chunk, where decay is per channel: in
// registers, 16 tokens at a time, with channels as rows of the tensor cores' operands.
//
// With D_ij = 2^(G_i - G_j) by channel and the scores Aq and Ak, which have no decay:
//   dq_i = 2^G_i X_i + sum_j Aq_ij D_ij k_j
//   dk_i = 2^G_i Y_i + sum_j Ak_ij D_ij k_j + 2^(G_C - G_i) W_i + sum_j D_ji (Aq_ji q_j + Ak_ji k_j)
// by the levels of channel_prepare.cu: at each level a token is after its group's middle, where it takes the first
// sums, or before it, where it takes the last, and has one factor 2^-|G - P|, on keys and queries as on the sums.
//
// d_g_t counts the pairs and states that its decay stands between, and each as it is: nothing is the difference of
// sums, which a strong decay would be lost in. At a level, of a token i after the middle q_i dq_i + k_i dk_i counts
// for tokens from the middle to i, and of j before it k_j dk_j for those after j up to the middle; X and Y count
// from the chunk's begin, W to its end, and <S, R> for all.
#pragma once

#include "channel_warp.cuh"

namespace lasp::gpu::delta_hopper::channel {

// After inputs, results.
constexpr int kOfDQ = kOfTotals, kOfDK = kOfDQ + kResultBytes, kOfDG = kOfDK + kResultBytes,
              kFinishBytes = kOfDG + kResultBytes;

// d += A B, with 8 tokens across: A's registers are the first or last two of a block's.
template <typename T>
__device__ __forceinline__ void multiply_8(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t b) {
  if constexpr (kIsBFloat16<T>) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(b));
  } else {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(b));
  }
}

template <typename T>
struct Finish : Channels<T> {
  using Base = Channels<T>;
  using Base::lane, Base::r, Base::q, Base::warp, Base::shared;
  using Base::sums_of, Base::scale, Base::last_of, Base::scores, Base::rows, Base::columns, Base::load,
      Base::count_from, Base::place, Base::store_float, Base::load_tokens;
  using typename Base::Quad;
  Pairs far_k[2], far_q[2];  // of the two blocks on the other side, at level 32

  static __device__ __forceinline__ float at_lane(float x, int from) { return __shfl_sync(~0u, x, from); }
  // 2^-|G - P| of a block, P by half and channel.
  template <typename Middle>
  __device__ __forceinline__ void factors(Numbers &f, const Tokens &t, Middle middle) const {
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
      for (int e = 0; e < 4; ++e) f[h][e] = exp2_fast(-fabsf(t.g[h][e] - middle(h, e / 2)));
  }
  struct Results {
    Numbers d_q, d_k, d_g;
  };
  // What a level gave: to dq and dk, and in `share` what counts for d_g.
  __device__ __forceinline__ void take(Results &to, Numbers &share, const Numbers &sum_q, const Numbers &sum_k,
                                       const Numbers &f, const Tokens &t) const {
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const float2 key = unpack<T>(t.k[2 * h + c]), query = unpack<T>(t.q[2 * h + c]);
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int i = 2 * c + e;
          const float x = f[h][i] * sum_q[h][i], y = f[h][i] * sum_k[h][i];
          to.d_q[h][i] += x, to.d_k[h][i] += y;
          share[h][i] = fmaf(e ? query.y : query.x, x, (e ? key.y : key.x) * y);
        }
      }
  }

  // What states give block b, and its shares of d_g: q X + k Y, then k W.
  __device__ __forceinline__ void take_states(Results &to, Numbers &first, Numbers &second, const Tokens &t,
                                              const char *left, int tile, int b) const {
    Pairs x, y, w;
    load(x, left + Left::kX, tile, b), load(y, left + Left::kY, tile, b), load(w, left + Left::kW, tile, b);
    const float last[2] = {last_of(3, 0), last_of(3, 1)};
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int at = 2 * h + c;
        const float2 key = unpack<T>(t.k[at]), query = unpack<T>(t.q[at]), xs = unpack<T>(x[at]),
                     ys = unpack<T>(y[at]), ws = unpack<T>(w[at]);
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int i = 2 * c + e;
          const float now = exp2_fast(t.g[h][i]), end = exp2_fast(last[c] - t.g[h][i]);
          const float dq = now * (e ? xs.y : xs.x), row = now * (e ? ys.y : ys.x), column = end * (e ? ws.y : ws.x);
          to.d_q[h][i] = dq, to.d_k[h][i] = row + column;
          first[h][i] = fmaf(e ? query.y : query.x, dq, (e ? key.y : key.x) * row);
          second[h][i] = (e ? key.y : key.x) * column;
        }
      }
  }

  __device__ __forceinline__ void count_before(Numbers &d_g, const Numbers &x) const {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      float before = 0;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float a = x[h][2 * c], b = x[h][2 * c + 1];
        const Quad sums = sums_of(a + b);
        const float rest = before + sums.before;
        d_g[h][2 * c] += rest, d_g[h][2 * c + 1] += rest + a;
        before += sums.all;
      }
    }
  }

  // Level 8, in block b.
  __device__ __forceinline__ void half_blocks(Results &to, const Tokens &t, int b) const {
    Numbers f, share, sum_q = {}, sum_k = {};
    const float middle[2] = {at_lane(t.g[0][1], lane | 3), at_lane(t.g[0][3], lane | 3)};
    factors(f, t, [&](int, int c) { return middle[c]; });
    Pairs x, y;
    scale(x, t.k, f), scale(y, t.q, f);
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      uint32_t a[4], c[4], down_a[4], down_c[4];
      load_matrices(a, scores(part, b, b)), load_matrices(c, scores(2 + part, b, b));
      load_matrices_transposed(down_a, scores(part, b, b)),
          load_matrices_transposed(down_c, scores(2 + part, b, b));
      multiply_8<T>(sum_q[1], x[0], x[1], a[2]);
      multiply_8<T>(sum_k[1], x[0], x[1], c[2]);
      multiply_8<T>(sum_k[0], y[2], y[3], down_a[2]);
      multiply_8<T>(sum_k[0], x[2], x[3], down_c[2]);
    }
    take(to, share, sum_q, sum_k, f, t);
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const Quad before = sums_of(share[0][2 * c] + share[0][2 * c + 1]),
                 after = sums_of(share[1][2 * c] + share[1][2 * c + 1]);
      to.d_g[0][2 * c] += before.before, to.d_g[0][2 * c + 1] += before.before + share[0][2 * c];
      to.d_g[1][2 * c] += after.after + share[1][2 * c] + share[1][2 * c + 1];
      to.d_g[1][2 * c + 1] += after.after + share[1][2 * c + 1];
    }
  }

  // Levels 4, 2 and 1 of a block, and 0: each token with itself, which no decay stands between.
  template <int kLevel>
  __device__ __forceinline__ void small(Results &to, const Tokens &t, int b) const {
    Numbers f, share, sum_q = {}, sum_k = {};
    Pairs x, y;
    if constexpr (kLevel > 0) {
      float middle[2][2];
#pragma unroll
      for (int h = 0; h < 2; ++h)
#pragma unroll
        for (int c = 0; c < 2; ++c)
          middle[h][c] = kLevel == 4   ? at_lane(t.g[h][2 * c + 1], lane / 4 * 4 + 1)
                         : kLevel == 2 ? at_lane(t.g[h][2 * c + 1], lane / 2 * 2)
                                       : t.g[h][2 * c];
      factors(f, t, [&](int h, int c) { return middle[h][c]; });
      scale(x, t.k, f), scale(y, t.q, f);
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i) f[i / 4][i % 4] = 1;
#pragma unroll
      for (int i = 0; i < 4; ++i) x[i] = t.k[i], y[i] = t.q[i];
    }
    // Which of a pair count, of rows' scores (row r, columns 2q and 2q + 1) and of columns' (column r, rows).
    const bool row = kLevel == 4   ? r >= 4 && q < 2
                     : kLevel == 2 ? r / 4 == q / 2 && r % 4 >= 2 && q % 2 == 0
                                   : r / 2 == q,
               column = kLevel == 4   ? r < 4 && q >= 2
                        : kLevel == 2 ? r / 4 == q / 2 && r % 4 < 2 && q % 2 == 1
                                      : r / 2 == q;
    uint32_t of_row = row ? ~0u : 0, of_column = column ? ~0u : 0;
    if constexpr (kLevel == 1) of_row &= r % 2 ? 0xffffu : 0, of_column &= r % 2 ? 0 : 0xffff0000u;
    if constexpr (kLevel == 0) of_row &= r % 2 ? 0xffff0000u : 0xffffu;
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      uint32_t a[4], c[4], down_a[4], down_c[4];
      load_matrices(a, scores(part, b, b));
      if constexpr (kLevel > 0) {
        load_matrices(c, scores(2 + part, b, b));
        load_matrices_transposed(down_a, scores(part, b, b));
        load_matrices_transposed(down_c, scores(2 + part, b, b));
      }
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        multiply_8<T>(sum_q[h], x[2 * h], x[2 * h + 1], a[3 * h] & of_row);
        if constexpr (kLevel > 0) {
          multiply_8<T>(sum_k[h], x[2 * h], x[2 * h + 1], c[3 * h] & of_row);
          multiply_8<T>(sum_k[h], y[2 * h], y[2 * h + 1], down_a[3 * h] & of_column);
          multiply_8<T>(sum_k[h], x[2 * h], x[2 * h + 1], down_c[3 * h] & of_column);
        } else {
          multiply_8<T>(sum_k[h], y[2 * h], y[2 * h + 1], a[3 * h] & of_row);
        }
      }
    }
    take(to, share, sum_q, sum_k, f, t);
#pragma unroll
    for (int h = 0; h < (kLevel == 0 ? 0 : 2); ++h)
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const float first = share[h][2 * c], second = share[h][2 * c + 1];
        if constexpr (kLevel == 1) {
          to.d_g[h][2 * c + 1] += second;
          continue;
        }
        const bool after = kLevel == 4 ? q >= 2 : q % 2 == 1;
        float rest = 0;
        if constexpr (kLevel == 4) {
          const float other = __shfl_xor_sync(~0u, first + second, 1);
          rest = q == 1 || q == 2 ? other : 0;
        }
        to.d_g[h][2 * c] += rest + (after ? first + second : 0);
        to.d_g[h][2 * c + 1] += rest + (after ? second : first);
      }
  }

  // Block b whole. far[c]: of the level's shares of the other block on the same side, the sum, which is left here.
  template <int b>
  __device__ __forceinline__ void block(const char *left, float (&far)[2]) {
    Tokens t;
    load_tokens(t, b);
    Results to;
    Numbers from, before;  // shares that count to the block's begin or end
    const int tile = 2 * (4 * blockIdx.y + warp);
    take_states(to, from, before, t, left, tile, b);
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      // And of the far level, what the other block on this side counts.
      float all = load_float(place(kOfDG, b, 0, 2 * c));
      if constexpr (b == 2 || b == 1) all += far[c];
#pragma unroll
      for (int h = 0; h < 2; ++h) to.d_g[h][2 * c] = to.d_g[h][2 * c + 1] = all;
    }
    {
      Numbers f, share, sum_q = {}, sum_k = {};
      const float middle[2] = {last_of(1, 0), last_of(1, 1)};
      factors(f, t, [&](int, int c) { return middle[c]; });
      if constexpr (b >= 2) {
        rows(sum_q, far_k[0], 0, b, 0), rows(sum_q, far_k[1], 0, b, 1);
        rows(sum_k, far_k[0], 2, b, 0), rows(sum_k, far_k[1], 2, b, 1);
      } else {
        columns(sum_k, far_q[0], 0, 2, b), columns(sum_k, far_q[1], 0, 3, b);
        columns(sum_k, far_k[0], 2, 2, b), columns(sum_k, far_k[1], 2, 3, b);
      }
      take(to, share, sum_q, sum_k, f, t);
      Numbers &with = b >= 2 ? from : before;
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        far[c] = sums_of(share[0][2 * c] + share[0][2 * c + 1] + share[1][2 * c] + share[1][2 * c + 1]).all;
#pragma unroll
        for (int h = 0; h < 2; ++h) with[h][2 * c] += share[h][2 * c], with[h][2 * c + 1] += share[h][2 * c + 1];
      }
    }
    {
      constexpr int kOther = b ^ 1;
      Tokens other;
      load_tokens(other, kOther);
      Numbers f, share, sum_q = {}, sum_k = {};
      const float middle[2] = {last_of(b & 2, 0), last_of(b & 2, 1)};
      factors(f, other, [&](int, int c) { return middle[c]; });
      Pairs x, y;
      scale(x, other.k, f);
      if constexpr (b % 2 == 1) {
        rows(sum_q, x, 0, b, kOther), rows(sum_k, x, 2, b, kOther);
      } else {
        scale(y, other.q, f);
        columns(sum_k, y, 0, kOther, b), columns(sum_k, x, 2, kOther, b);
      }
      factors(f, t, [&](int, int c) { return middle[c]; });
      take(to, share, sum_q, sum_k, f, t);
      Numbers &with = b % 2 ? from : before;
#pragma unroll
      for (int i = 0; i < 8; ++i) with[i / 4][i % 4] += share[i / 4][i % 4];
    }
    count_from(to.d_g, from), count_before(to.d_g, before);
    __syncwarp();  // no level's scores are read before their time, which would cost registers
    half_blocks(to, t, b);
    __syncwarp();
    small<4>(to, t, b);
    __syncwarp();
    small<2>(to, t, b);
    __syncwarp();
    small<1>(to, t, b), small<0>(to, t, b);
    put(to.d_q, kOfDQ, b), put(to.d_k, kOfDK, b), put(to.d_g, kOfDG, b);
  }
  __device__ __forceinline__ void put(const Numbers &x, int to, int b) const {
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
      for (int i = 0; i < 4; ++i) store_float(place(to, b, h, i), x[h][i]);
  }

  // At blocks `first` and the next, from the other side of the chunk's middle.
  template <bool kQueries>
  __device__ __forceinline__ void look_far(int first) {
    const float middle[2] = {last_of(1, 0), last_of(1, 1)};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      Tokens t;
      load_tokens(t, first + i);
      Numbers f;
      factors(f, t, [&](int, int c) { return middle[c]; });
      scale(far_k[i], t.k, f);
      if constexpr (kQueries) scale(far_q[i], t.q, f);
    }
  }
  __device__ __forceinline__ void run(const char *left) {
    const int tile = 2 * (4 * int(blockIdx.y) + warp);
    // What counts for all of a block's tokens waits where its d_g will be: <S, R>, and shares of states from other
    // blocks.
    float rest[4][2];
    const float *const shares = reinterpret_cast<const float *>(left + Left::kShare) + 8 * tile + r;
#pragma unroll
    for (int b = 0; b < 4; ++b) rest[b][0] = shares[0], rest[b][1] = shares[8];
#pragma unroll
    for (int b = 0; b < 4; ++b) {
      Tokens t;
      load_tokens(t, b);
      Results none;
      Numbers first, second;
      take_states(none, first, second, t, left, tile, b);
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const float *const x = first[0], *const y = second[0];
        const auto all_of = [&](const float *z) {
          return sums_of(z[2 * c] + z[2 * c + 1] + z[4 + 2 * c] + z[4 + 2 * c + 1]).all;
        };
        const float later = all_of(x), earlier = all_of(y);
#pragma unroll
        for (int other = 0; other < 4; ++other) rest[other][c] += other < b ? later : other > b ? earlier : 0;
      }
    }
#pragma unroll
    for (int b = 0; b < 4; ++b)
#pragma unroll
      for (int c = 0; c < 2; ++c) store_float(place(kOfDG, b, 0, 2 * c), rest[b][c]);
    float far[2] = {0, 0};
    look_far<false>(0);
    block<3>(left, far), block<2>(left, far);
    look_far<true>(2);
    block<0>(left, far), block<1>(left, far);
  }
};

}  // namespace lasp::gpu::delta_hopper::channel
