// The state warps of the mma linear pass. A warp holds 16 rows of the state [y.dim, a.dim], float32 accumulators in
// registers for the whole run. Rounded to 16 bits as they lie they are the A operand of y^T = S^T a^T; the update
// S^T += c^T b multiplies into them. What is scaled comes as a high and a low part, so that the state keeps its
// digits.
#pragma once

#include "../add_global.cuh"
#include "layout.cuh"

namespace lasp::gpu::mma {

template <typename T, int kDim, Kind kKind, Result kResult>
struct State {
  using L = Layout<kDim, kKind>;
  static constexpr int kSteps = kDim / 16, kTogether = 2;
  static constexpr bool kMayAdd = kResult == Result::kRounded && kDim == kMostColumns;
  const PassParams &p;
  const Part &part;
  char *const memory;
  const int lane = threadIdx.x % 32, first = threadIdx.x / 32 * 16;  // of this warp's rows, in the block
  const int r = lane / 4, q = lane % 4;
  Ring ring;
  char *next_y = nullptr;  // where this lane stores its part of the next chunk's y
  int64_t y_step = 0;
  float acc[kDim / 8][4];  // columns 8 n + 2 q, + 1 of row r, then of row r + 8

  __device__ State(const PassParams &params, const Part &its, char *shared) : p(params), part(its), memory(shared) {
    if (kResult != Result::kRounded || !p.y.data) return;
    const int64_t step = (part.reversed ? -2 : 2) * p.y.strides.token;
    next_y = static_cast<char *>(p.y.data) +
             2 * (offset_of(p.y.strides, part.run.row, part.token(0), part.head) + part.first_row + first) +
             lane / 2 * step + lane % 2 * 16;
    y_step = kChunk * step;
  }

  // f(element of the accumulators, its place in a state in memory).
  template <typename Do>
  __device__ __forceinline__ void each(Do f) {
    const int32_t row_stride = p.state_transposed ? p.whole_columns : 1,
                  column_stride = p.state_transposed ? 1 : p.y.dim;
    const int32_t base = (part.first_row + first + r) * row_stride + 2 * q * column_stride;
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n) {
      if (8 * n >= p.a.dim) break;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = i / 2 * 8, column = 8 * n + i % 2;
        if (first + r + row < part.rows) f(acc[n][i], base + row * row_stride + column * column_stride);
      }
    }
  }
  __device__ __forceinline__ int64_t state_at() const {
    return (part.run.state * p.heads + part.head) * p.whole_columns * p.y.dim;
  }
  __device__ __forceinline__ void load() {
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n) acc[n][0] = acc[n][1] = acc[n][2] = acc[n][3] = 0;
    if (!p.state_in) return;
    const float *const from = p.state_in + state_at();
    each([&](float &x, int32_t at) { x = p.in_scale * from[at]; });
  }
  __device__ __forceinline__ void store() {
    float *to = p.state_out;
    int64_t at = state_at();
    if (p.edge_state) {
      const int64_t edge = part.reversed ? part.run.starts : part.run.ends;
      if (edge < 0) return;
      to = p.edge_state, at = (edge * p.heads + part.head) * p.whole_columns * p.y.dim;
    }
    if (!to) return;
    to += at;
    each([&](float &x, int32_t at) { to[at] = p.out_scale * x; });
  }

  // Step k: columns [16 k, 16 k + 16).
  __device__ __forceinline__ void decay_columns(int k, const float *factors) {
#pragma unroll
    for (int n = 2 * k; n < 2 * k + 2; ++n) {
      const float2 f = *reinterpret_cast<const float2 *>(factors + 8 * n + 2 * q);
      acc[n][0] *= f.x, acc[n][1] *= f.y, acc[n][2] *= f.x, acc[n][3] *= f.y;
    }
  }
  __device__ __forceinline__ void decay_rows(int k, float2 f) {
#pragma unroll
    for (int n = 2 * k; n < 2 * k + 2; ++n) acc[n][0] *= f.x, acc[n][1] *= f.x, acc[n][2] *= f.y, acc[n][3] *= f.y;
  }
  // The tensor cores cut off what they add: the chunk's own part comes from them, the sum is IEEE float32.
  __device__ __forceinline__ void add(int k, const float (&left)[4], const float (&right)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) acc[2 * k][i] += left[i], acc[2 * k + 1][i] += right[i];
  }
  __device__ const float *decays(int at, int chunk) const {
    return reinterpret_cast<const float *>(memory + at + copy_of(chunk) * L::kDecayBytes);
  }
  __device__ __forceinline__ float2 row_decays(int at, int chunk) const {
    return {decays(at, chunk)[first + r], decays(at, chunk)[first + r + 8]};
  }

  // Factors of y, [row r, r + 8][token 2q, 2q + 1], tokens from `token`.
  __device__ __forceinline__ void multiply_y(float (&y)[4], const char *factors, int token) const {
    if constexpr (kKind == Kind::kToken) {
      const float2 f = *reinterpret_cast<const float2 *>(factors + 4 * (token + 2 * q));
      y[0] *= f.x, y[1] *= f.y, y[2] *= f.x, y[3] *= f.y;
    } else {
      const float *const f = reinterpret_cast<const float *>(factors + (token + 2 * q) * L::kFactorRow) + first + r;
      y[0] *= f[0], y[1] *= f[L::kFactorRow / 4], y[2] *= f[8], y[3] *= f[L::kFactorRow / 4 + 8];
    }
  }
  __device__ __forceinline__ void add_direct(float (&y)[4], const char *stage, int token) const {
    const float *const f = reinterpret_cast<const float *>(stage + L::kG) + (token + 2 * q) * L::kRows + first + r;
    y[0] += f[0], y[1] += f[L::kRows], y[2] += f[8], y[3] += f[L::kRows + 8];
  }
  __device__ __forceinline__ bool stores_y(int chunk) const {
    return chunk * kChunk + lane / 2 < part.run.length && first + lane % 2 * 8 < part.rows;
  }
  // What is there of the chunk's y already: fetched early, for put_y to add to.
  __device__ __forceinline__ uint4 earlier_y(int chunk) const {
    uint4 earlier = {};
    if (kMayAdd && p.adds && stores_y(chunk)) earlier = *reinterpret_cast<const uint4 *>(next_y);
    return earlier;
  }
  // From registers: eight neighbours of a token by the lanes that have them.
  __device__ __forceinline__ void put_gradient(const float (&y)[2][4], int chunk) const {
    const DType type = p.y_float32 ? DType::kFloat32 : kIsBFloat16<T> ? DType::kBFloat16 : DType::kFloat16;
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int token = chunk * kChunk + 8 * n + 2 * q + i % 2, row = first + r + i / 2 * 8;
        if (token < part.run.length && row < part.rows)
          put_element(p.y.data, type,
                      offset_of(p.y.strides, part.run.row, part.token(token), part.head) + part.first_row + row,
                      p.scale * y[n][i], p.y_adds || p.adds);
      }
  }
  // What joins y's first columns without kMayAdd's registers is added by the second cache.
  __device__ __forceinline__ void store_piece(uint4 *at, const uint4 &v) const {
    if (kKind == Kind::kColumns && !kMayAdd && p.adds) return add_global<T>(at, v);
    *at = v;
  }
  // By way of the warp's own memory, so that a lane stores 16 bytes.
  __device__ __forceinline__ void put_y(float (&y)[2][4], int chunk, const uint4 &earlier) {
    char *const staging = memory + L::kY + first * L::kYRow;  // 16 tokens of 16 rows
    char *const mine = staging + lane / 2 * L::kYRow + lane % 2 * 16;
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) y[n][i] *= p.scale;
    if (kMayAdd && p.adds) {
      *reinterpret_cast<uint4 *>(mine) = earlier;
      __syncwarp();
#pragma unroll
      for (int n = 0; n < 2; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          y[n][i] += as_float(
              *reinterpret_cast<const T *>(staging + (8 * n + 2 * q + i % 2) * L::kYRow + 2 * (r + 8 * (i / 2))));
      __syncwarp();
    }
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int i = 0; i < 4; i += 2) {
        const uint32_t pair = pack<T>(y[n][i], y[n][i + 1]);
        char *const at = staging + (8 * n + 2 * q) * L::kYRow + 2 * (r + 4 * i);
        *reinterpret_cast<uint16_t *>(at) = static_cast<uint16_t>(pair);
        *reinterpret_cast<uint16_t *>(at + L::kYRow) = static_cast<uint16_t>(pair >> 16);
      }
    }
    __syncwarp();
    if (stores_y(chunk)) store_piece(reinterpret_cast<uint4 *>(next_y), *reinterpret_cast<const uint4 *>(mine));
    next_y += y_step;
    __syncwarp();
  }

  // kTwice: the state decays between y and the update too, or of kinds that are for tokens at all.
  template <bool kReads, bool kTwice>
  __device__ __forceinline__ void take(int chunk) {
    char *const stage = memory + L::kFirstStage + ring.stage * L::kStageBytes;
    const float *const before = decays(L::kBefore, chunk), *const after = decays(L::kAfter, chunk);
    uint4 earlier;
    if constexpr (kReads) earlier = earlier_y(chunk);
    float2 row_before, row_after;
    if constexpr (kKind == Kind::kRows) row_before = row_decays(L::kBefore, chunk);
    if constexpr (kKind == Kind::kRows && kTwice) row_after = row_decays(L::kAfter, chunk);
    if constexpr (kKind == Kind::kToken && kTwice) row_after = {after[0], after[0]};
    // Rows of a 16 x 16 tile for ldmatrix: the two row halves first, or the two column halves.
    const int rows_first = lane % 16, columns_first = lane % 8 + lane / 16 * 8;
    const uint32_t wide = rows_first * L::kWide + lane / 16 * 16;
    const uint32_t narrow = columns_first * L::kNarrow + 2 * first + lane / 8 % 2 * 16;
    const uint32_t a = shared_address(stage + L::kA) + columns_first * L::kWide + lane / 8 % 2 * 16;
    const uint32_t b = shared_address(stage + L::kB) + wide;
    const uint32_t rest =
        shared_address(memory + L::kRest + copy_of(chunk) * L::kRestBytes) + (kKind == Kind::kRows ? narrow : wide);
    uint32_t c[4], c_rest[4];
    load_matrices_transposed(c, shared_address(stage + L::kC) + narrow);
    if constexpr (kKind == Kind::kRows) load_matrices_transposed(c_rest, rest);
    float y[2][4] = {};
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      // What lies beyond the tensors is zero. (The branch also keeps the compiler from starting more than fits.)
      if (k % kTogether == 0 && 16 * k >= p.a.dim) break;
      if constexpr (kKind == Kind::kColumns) decay_columns(k, before);
      if constexpr (kKind == Kind::kRows) decay_rows(k, row_before);
      if constexpr (kReads) {
        const float(&s)[4] = acc[2 * k], (&t)[4] = acc[2 * k + 1];
        const uint32_t rounded[4] = {pack<T>(s[0], s[1]), pack<T>(s[2], s[3]), pack<T>(t[0], t[1]),
                                     pack<T>(t[2], t[3])};
        uint32_t tokens[4];
        load_matrices(tokens, a + 32 * k);
        multiply<T>(y[0], rounded, tokens[0], tokens[1]);
        multiply<T>(y[1], rounded, tokens[2], tokens[3]);
      }
      if constexpr (kTwice && kKind == Kind::kColumns) decay_columns(k, after);
      if constexpr (kTwice && kKind != Kind::kColumns) decay_rows(k, row_after);
      float left[4] = {}, right[4] = {};
      uint32_t tokens[4];
      load_matrices_transposed(tokens, b + 32 * k);
      multiply<T>(left, c, tokens[0], tokens[1]);
      multiply<T>(right, c, tokens[2], tokens[3]);
      if constexpr (kKind == Kind::kRows) {
        multiply<T>(left, c_rest, tokens[0], tokens[1]);
        multiply<T>(right, c_rest, tokens[2], tokens[3]);
      } else if constexpr (kKind == Kind::kColumns || kTwice) {
        load_matrices_transposed(tokens, rest + 32 * k);
        multiply<T>(left, c, tokens[0], tokens[1]);
        multiply<T>(right, c, tokens[2], tokens[3]);
      }
      add(k, left, right);
    }
    if constexpr (kReads) finish_y<kTwice>(chunk, stage, y, c, earlier);
  }

  template <bool kTwice>
  __device__ __forceinline__ void finish_y(int chunk, const char *stage, float (&y)[2][4], const uint32_t (&c)[4],
                                           const uint4 &earlier) {
    constexpr bool kDirectRows = kKind == Kind::kRows && kTwice;
    const char *const factors = memory + L::kFactors + copy_of(chunk) * L::kFactorBytes;
    uint32_t scores[4];
    load_matrices(scores, shared_address(memory + L::kScores + copy_of(chunk) * kChunk * L::kScoreRow) +
                              (lane % 8 + lane / 16 * 8) * L::kScoreRow + lane / 8 % 2 * 16);
    // Tokens' factors belong to what the state gives; rows' factors to all but direct sums.
    if constexpr (kKind != Kind::kColumns && kTwice) multiply_y(y[0], factors, 0), multiply_y(y[1], factors, 8);
    if constexpr (kDirectRows) {
      add_direct(y[0], stage, 0), add_direct(y[1], stage, 8);
    } else {
      multiply<T>(y[0], c, scores[0], scores[1]);
      multiply<T>(y[1], c, scores[2], scores[3]);
    }
    if constexpr (kKind == Kind::kRows && !kTwice) multiply_y(y[0], factors, 0), multiply_y(y[1], factors, 8);
    if constexpr (kResult == Result::kRounded) {
      put_y(y, chunk, earlier);
    } else {
      put_gradient(y, chunk);
    }
  }

  template <bool kReads>
  __device__ __forceinline__ void walk() {
#pragma unroll 1
    for (int chunk = 0; chunk < part.chunks; ++chunk) {
      const bool twice = kKind == Kind::kToken ? p.decay != Decay::kNone
                                               : reinterpret_cast<const int *>(memory + L::kDirect)[copy_of(chunk)];
      if (twice) {
        take<kReads, true>(chunk);
      } else {
        take<kReads, false>(chunk);
      }
      ring.next(p.stages);
      sync_all();
    }
  }

  __device__ __forceinline__ void run() {
    load();
    sync_all();
    sync_all();
    if (kResult != Result::kRounded || p.y.data) {
      walk<true>();
    } else {
      walk<false>();
    }
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      if constexpr (kKind == Kind::kColumns) decay_columns(k, decays(L::kBefore, part.chunks));
      if constexpr (kKind == Kind::kRows) decay_rows(k, row_decays(L::kBefore, part.chunks));
    }
    store();
  }
};

}  // namespace lasp::gpu::mma
