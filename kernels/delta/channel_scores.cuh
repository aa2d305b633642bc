// Scores of a chunk for any decays per channel: sums over channels of k_i k_j 2^(G_i - G_j), j < i, where no factor
// may be over 1, as 2^-G overflows.
//
// Pairs are taken by levels. At level L = 32, 16, 8, 4, 2 or 1, groups of 2 L tokens have a middle, and of a pair i
// is after it and j before it; with P = G of the last token before the middle, both 2^(G_i - P) and 2^(P - G_j) are
// at most 1. Each pair has one level, and at each level a token is on one side and has one factor, 2^-|G - P|. Four
// warps have the levels up to 8, a block of 16 tokens each; four have the rest. Products of a high and a low part.
#pragma once

#include "channel_layout.cuh"
#include "prepare_solve.cuh"

namespace lasp::gpu::delta_hopper::channel {

constexpr int kRow = 2 * kDim + 16;  // bytes of a row of k and q
constexpr int kSumRow = kDim + 8;    // floats of a row of G

// Rows `token` and token + 8, 16 channels: a left operand; its halves are right operands of 8 tokens each.
struct Parts {
  uint32_t high[4], low[4];
};

template <typename T>
struct Scores {
  const char *k, *q;
  const float *sums;
  int r = threadIdx.x % 32 / 4, q2 = threadIdx.x % 4 * 2;

  // k and q of tokens first + r and + 8, channels 16 step .., times 2^-|G - G of token middle[0] or middle[1]|.
  template <bool kQuery>
  __device__ __forceinline__ void load(Parts &of_k, Parts &of_q, int first, const int (&middle)[2],
                                       int step) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int token = first + r + i % 2 * 8, c = 16 * step + q2 + i / 2 * 8;
      const float2 g = *reinterpret_cast<const float2 *>(sums + token * kSumRow + c),
                   p = *reinterpret_cast<const float2 *>(sums + middle[i % 2] * kSumRow + c);
      const float2 f = {exp2_fast(-fabsf(g.x - p.x)), exp2_fast(-fabsf(g.y - p.y))};
      const int at = token * kRow + 2 * c;
      of_k.high[i] = mma::scale_pair<T>(*reinterpret_cast<const uint32_t *>(k + at), f, &of_k.low[i]);
      if constexpr (kQuery)
        of_q.high[i] = mma::scale_pair<T>(*reinterpret_cast<const uint32_t *>(q + at), f, &of_q.low[i]);
    }
  }
  // d += a b^T, b the 8 tokens of half h.
  static __device__ __forceinline__ void multiply(float (&d)[4], const Parts &a, const Parts &b, int h) {
    mma::multiply<T>(d, a.low, b.high[h], b.high[h + 2]);
    mma::multiply<T>(d, a.high, b.low[h], b.low[h + 2]);
    mma::multiply<T>(d, a.high, b.high[h], b.high[h + 2]);
  }

  // The block on the diagonal from token `first`: its levels one after another, then q_i k_i.
  __device__ __forceinline__ void diagonal(float (&kk)[2][4], float (&qk)[2][4], int first) const {
#pragma unroll 1
    for (int level = 8; level >= 0; level = level > 1 ? level / 2 : level - 1) {
      const auto middle_of = [&](int token) {
        return level == 0 ? first + token : first + token / (2 * level) * 2 * level + level - 1;
      };
      const int middle[2] = {middle_of(r), middle_of(r + 8)};
      float x[2][4] = {}, y[2][4] = {};
#pragma unroll 2
      for (int step = 0; step < kDim / 16; ++step) {
        Parts a, b;
        load<true>(a, b, first, middle, step);
        if (level > 0) multiply(x[0], a, a, 0);
        multiply(y[0], b, a, 0);
        if (level == 8) continue;
        if (level > 0) multiply(x[1], a, a, 1);
        multiply(y[1], b, a, 1);
      }
#pragma unroll
      for (int h = 0; h < 2; ++h)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int i = r + e / 2 * 8, j = 8 * h + q2 + e % 2;
          const bool mine =
              level == 0 ? i == j : i / (2 * level) == j / (2 * level) && i / level % 2 == 1 && j / level % 2 == 0;
          if (mine) qk[h][e] = y[h][e];
          if (mine && level > 0) kk[h][e] = x[h][e];
        }
    }
  }
  // Blocks under it, rows `row` .. and kCount blocks of columns from `column` on, with their middle before
  // `middle`.
  __device__ __forceinline__ void under(float (&kk)[2][2][4], float (&qk)[2][2][4], int row, int column, int count,
                                        int before) const {
    const int middle[2] = {before, before};
#pragma unroll 2
    for (int step = 0; step < kDim / 16; ++step) {
      Parts a, c, b, none;
      load<true>(a, c, row, middle, step);
#pragma unroll
      for (int n = 0; n < 2; ++n)
        if (n < count) {
          load<false>(b, none, column + 16 * n, middle, step);
#pragma unroll
          for (int h = 0; h < 2; ++h) multiply(kk[n][h], a, b, h), multiply(qk[n][h], c, b, h);
        }
    }
  }
  // A block of both.
  __device__ __forceinline__ void store(const float (&kk)[2][4], const float (&qk)[2][4], int row, int column,
                                        float *square, char *to) const {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        *reinterpret_cast<float2 *>(square + (row + 8 * half + r) * kSquare + column + 8 * h + q2) =
            float2{kk[h][2 * half], kk[h][2 * half + 1]};
        const float x = qk[h][2 * half], y = qk[h][2 * half + 1];
        const uint32_t high = pack<T>(x, y);
        put(to + kPairP, row / 8 + half, column / 8 + h, lane, high, mma::pack_rest<T>(x, y, high));
      }
  }
};

// The scaled images of a slot, by kThreads threads.
template <typename T, int kThreads>
__device__ __forceinline__ void store_images(const char *k, const char *q, const float *sums, char *to) {
  const int thread = threadIdx.x % kThreads, piece = thread % 16;
  float last[8];
#pragma unroll
  for (int c = 0; c < 8; ++c) last[c] = sums[(kChunk - 1) * kSumRow + 8 * piece + c];
  const auto store = [&](int image, int at, const uint32_t(&x)[4]) {
    *reinterpret_cast<uint4 *>(to + image + at) = uint4{x[0], x[1], x[2], x[3]};
  };
#pragma unroll 2
  for (int row = thread / 16; row < kChunk; row += kThreads / 16) {
    const int at = piece / 8 * kPanel + int(swizzled(row, piece % 8));
    uint32_t read[4], read_low[4], write[4], write_low[4], query[4];
    uint32_t keys[4], queries[4];
    *reinterpret_cast<uint4 *>(keys) = *reinterpret_cast<const uint4 *>(k + row * kRow + 16 * piece);
    *reinterpret_cast<uint4 *>(queries) = *reinterpret_cast<const uint4 *>(q + row * kRow + 16 * piece);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 g = *reinterpret_cast<const float2 *>(sums + row * kSumRow + 8 * piece + 2 * i);
      const float2 now = {exp2_fast(g.x), exp2_fast(g.y)},
                   end = {exp2_fast(last[2 * i] - g.x), exp2_fast(last[2 * i + 1] - g.y)};
      read[i] = mma::scale_pair<T>(keys[i], now, &read_low[i]);
      write[i] = mma::scale_pair<T>(keys[i], end, &write_low[i]);
      query[i] = mma::scale_pair<T>(queries[i], now, nullptr);
    }
    store(kReadHigh, at, read), store(kReadLow, at, read_low);
    store(kWriteHigh, at, write), store(kWriteLow, at, write_low);
    store(kQuery, at, query);
  }
}

// All of a chunk's scores, by 256 threads.
template <typename T>
__device__ __forceinline__ void find_scores(const Scores<T> &scores, float *square, char *to) {
  const int warp = threadIdx.x / 32;
  if (warp < 4) {
    float kk[2][4] = {}, qk[2][4] = {};
    scores.diagonal(kk, qk, 16 * warp);
    scores.store(kk, qk, 16 * warp, 16 * warp, square, to);
  } else {
    float kk[2][2][4] = {}, qk[2][2][4] = {};
    const int row = warp == 4 ? 32 : warp == 6 ? 16 : 48, column = warp == 7 ? 32 : 0, blocks = warp < 6 ? 2 : 1;
    scores.under(kk, qk, row, column, blocks, warp < 6 ? 31 : warp == 6 ? 15 : 47);
#pragma unroll
    for (int n = 0; n < 2; ++n)
      if (n < blocks) scores.store(kk[n], qk[n], row, column + 16 * n, square, to);
  }
}

}  // namespace lasp::gpu::delta_hopper::channel
