// The products of products.cuh on tensor cores, of 16-bit tensors: exact products, float32 sums. The states are a
// high and a low 16-bit part, so that they lose nothing that counts; float16 holds them up to 65,504, as it does
// those of the plan's passes. A warp owns 16 rows, a lane two of them.
#pragma once

#include "../products.cuh"
#include "ptx.cuh"

namespace lasp::gpu::mma {

using namespace products;

template <class T>
struct TensorCores {
  static constexpr int kRows = 2, kColumns = 16, kLanes = 4, kGroups = kTokens / kRows, kDepth = 32;
  struct Product {
    float x[kTokens / 8][4];  // accumulators of mma (ptx.cuh), 8 columns each
    __device__ float &at(int i, int j) { return x[j / 2][2 * i + j % 2]; }
    __device__ float at(int i, int j) const { return x[j / 2][2 * i + j % 2]; }
  };
  // 8 elements more in a row, so that 8 rows are in different banks.
  using TokenTile = T[kTokens][kDepth + 8];
  using StateTile = T[kDepth][kTokens + 8];
  struct Pair {
    alignas(16) TokenTile left, right;
  };
  using Pairs = Pair[2];  // one fills while the other is worked on
  struct Tiles {
    Pairs pairs;
    alignas(16) StateTile states[2][2];  // S_0, dS_E; high, low
  };
  struct RowTiles {
    Pairs pairs;
    alignas(16) TokenTile rows[2][2];  // of S_0, dS_E; high, low
  };
  static constexpr int kRowLanes = kDepth / 4, kStateRows = kTokens * kRowLanes / kThreads;

  __device__ static int lane() { return threadIdx.x % 32; }
  __device__ static int group() { return threadIdx.x / kLanes; }
  __device__ static int row(int i) { return threadIdx.x / 32 * 16 + lane() / 4 + 8 * i; }
  __device__ static int column(int j) { return j / 2 * 8 + lane() % 4 * 2 + j % 2; }
  __device__ static int state_row(int i) { return StatePiece<kTokens, kDepth>::row(i); }

  // Elements [from, from + kDepth) of a tile's tokens; what does not exist is zero.
  __device__ static void copy_tokens(TokenTile &to, const Tensor &x, const DecayGradient &p, const TileRange &range,
                                     int from) {
    const T *data =
        static_cast<const T *>(x.data) + offset_of(x, range.row, range.begin, range.head, p.heads) + from;
    constexpr int kCopies = kDepth / 8;  // of a token
#pragma unroll
    for (int n = threadIdx.x; n < kTokens * kCopies; n += kThreads) {
      const int token = n / kCopies, d = n % kCopies * 8;
      const bool there = token < range.count && from + d < x.dim;
      copy_16(shared_address(&to[token][d]), there ? data + token * x.strides.token + d : x.data, there);
    }
  }

  // To four neighbours of a row in each of two tiles.
  template <class Tile>
  __device__ static void split(Tile (&to)[2], const float4 &x, int k, int v) {
    const uint2 high = {pack<T>(x.x, x.y), pack<T>(x.z, x.w)};
    const uint2 low = {pack_rest<T>(x.x, x.y, high.x), pack_rest<T>(x.z, x.w, high.y)};
    *reinterpret_cast<uint2 *>(&to[0][k][v]) = high;
    *reinterpret_cast<uint2 *>(&to[1][k][v]) = low;
  }

  // A thread's part of both states, on the way to shared memory: rows [row, row + kRows), columns
  // [column, column + kColumns) of them.
  template <int kRows, int kColumns>
  struct StatePiece {
    static constexpr int kAcross = kColumns / 4, kDown = kThreads / kAcross, kCount = kRows / kDown;
    float4 state[kCount], gradient[kCount];

    __device__ static int row(int i) { return threadIdx.x / kAcross + i * kDown; }
    __device__ static int column() { return threadIdx.x % kAcross * 4; }
    __device__ void fetch(const DecayGradient &p, int64_t at, int first_row, int first_column) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        state[i] = gradient[i] = {};
        if (first_row + row(i) >= p.k.dim || first_column + column() >= p.v.dim) continue;
        const int64_t from = at + int64_t{first_row + row(i)} * p.v.dim + first_column + column();
        state[i] = *reinterpret_cast<const float4 *>(p.state + from);
        gradient[i] = *reinterpret_cast<const float4 *>(p.d_state + from);
      }
    }
    template <class Tile>
    __device__ void store(Tile (&to)[2][2], int first_row = 0) const {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        split(to[0], state[i], first_row + row(i), column());
        split(to[1], gradient[i], first_row + row(i), column());
      }
    }
    __device__ float product(int i) const {
      const float4 &x = state[i], &y = gradient[i];
      return fmaf(x.x, y.x, fmaf(x.y, y.y, fmaf(x.z, y.z, x.w * y.w)));
    }
  };

  // The warp's 16 rows, columns [d, d + 16) of the dimension that is summed over.
  __device__ static void load_left(uint32_t (&a)[4], const TokenTile &from, int d) {
    load_matrices(a, shared_address(&from[threadIdx.x / 32 * 16 + lane() % 16][d + lane() / 16 * 8]));
  }

  // product += the warp's 16 rows of `a` times rows of `right`, columns [d, d + 16) of both.
  __device__ static void multiply_rows(Product &product, const uint32_t (&a)[4], const TokenTile &right, int d) {
#pragma unroll
    for (int n = 0; n < kTokens; n += 16) {
      uint32_t b[4];
      load_matrices(b, shared_address(&right[n + lane() / 16 * 8 + lane() % 8][d + lane() / 8 % 2 * 8]));
      multiply<T>(product.x[n / 8], a, b[0], b[1]);
      multiply<T>(product.x[n / 8 + 1], a, b[2], b[3]);
    }
  }

  // Both sides of a pair, ahead of their use.
  __device__ static void copy_pair(Pairs &s, int step, const Tensor &x, const TileRange &x_range, const Tensor &y,
                                   const TileRange &y_range, const DecayGradient &p) {
    if (step * kDepth >= x.dim) return;
    copy_tokens(s[step % 2].left, x, p, x_range, step * kDepth);
    copy_tokens(s[step % 2].right, y, p, y_range, step * kDepth);
  }
  // Until the last pair but one is there, for all threads.
  __device__ static void wait_for_pair() {
    copies_commit();
    copies_wait<1>();
    __syncthreads();
  }

  __device__ static void tokens(Product &product, Pairs &s, const Tensor &x, const TileRange &x_range,
                                const Tensor &y, const TileRange &y_range, const DecayGradient &p) {
    copy_pair(s, 0, x, x_range, y, y_range, p);
    copies_commit();
#pragma unroll 1
    for (int step = 0; step * kDepth < x.dim; ++step) {
      copy_pair(s, step + 1, x, x_range, y, y_range, p);
      wait_for_pair();
#pragma unroll
      for (int d = 0; d < kDepth; d += 16) {
        uint32_t a[4];
        load_left(a, s[step % 2].left, d);
        multiply_rows(product, a, s[step % 2].right, d);
      }
      __syncthreads();
    }
  }

  __device__ static void multiply_state(Product &product, const uint32_t (&a)[4], const StateTile (&state)[2],
                                        int d) {
#pragma unroll
    for (int part = 0; part < 2; ++part)
#pragma unroll
      for (int n = 0; n < kTokens; n += 16) {
        uint32_t b[4];
        load_matrices_transposed(
            b, shared_address(&state[part][d + lane() / 8 % 2 * 8 + lane() % 8][n + lane() / 16 * 8]));
        multiply<T>(product.x[n / 8], a, b[0], b[1]);
        multiply<T>(product.x[n / 8 + 1], a, b[2], b[3]);
      }
  }

  __device__ static float states(Product &queries, Product &keys, Tiles &s, const DecayGradient &p,
                                 const TileRange &range, int64_t state, int v) {
    float through = 0;
    Pair &pair = s.pairs[0];
    for (int k = 0; k < p.k.dim; k += kDepth) {  // little ahead of its use: there are no registers for it
      copy_tokens(pair.left, p.q, p, range, k);
      copy_tokens(pair.right, p.k, p, range, k);
      copies_commit();
      constexpr int kRowsAtOnce = kDepth / 2;
#pragma unroll 1
      for (int row = 0; row < kDepth; row += kRowsAtOnce) {
        StatePiece<kRowsAtOnce, kTokens> piece;
        piece.fetch(p, state, k + row, v);
        piece.store(s.states, row);
#pragma unroll
        for (int i = 0; i < piece.kCount; ++i) through += piece.product(i);
      }
      copies_wait<0>();
      __syncthreads();
#pragma unroll
      for (int d = 0; d < kDepth; d += 16) {
        uint32_t a[4];
        load_left(a, pair.left, d);
        multiply_state(queries, a, s.states[0], d);
        load_left(a, pair.right, d);
        multiply_state(keys, a, s.states[1], d);
      }
      __syncthreads();
    }
    return through;
  }

  __device__ static void state_rows(Product &queries, Product &keys, float (&through)[kStateRows], RowTiles &s,
                                    const DecayGradient &p, const TileRange &range, int64_t state, int row) {
    StatePiece<kTokens, kDepth> piece;
    static_assert(piece.kCount == kStateRows && piece.kAcross == kRowLanes);
    piece.fetch(p, state, row, 0);
    copy_pair(s.pairs, 0, p.d_o, range, p.v, range, p);
    copies_commit();
#pragma unroll 1
    for (int step = 0; step * kDepth < p.v.dim; ++step) {
      const Pair &pair = s.pairs[step % 2];
      copy_pair(s.pairs, step + 1, p.d_o, range, p.v, range, p);
      piece.store(s.rows);
#pragma unroll
      for (int i = 0; i < kStateRows; ++i) through[i] += piece.product(i);
      wait_for_pair();
      piece.fetch(p, state, row, (step + 1) * kDepth);
#pragma unroll
      for (int d = 0; d < kDepth; d += 16) {
        uint32_t a[4];
        load_left(a, pair.left, d);
        for (const TokenTile &part : s.rows[0]) multiply_rows(queries, a, part, d);
        load_left(a, pair.right, d);
        for (const TokenTile &part : s.rows[1]) multiply_rows(keys, a, part, d);
      }
      __syncthreads();
    }
  }

  __device__ static void add_rows(float (&sums)[kRows], const Product &product, const Tensor &x,
                                  const DecayGradient &p, const TileRange &range, int v) {
    const T *data = static_cast<const T *>(x.data) + offset_of(x, range.row, range.begin, range.head, p.heads) + v;
#pragma unroll
    for (int i = 0; i < kRows; ++i)
#pragma unroll
      for (int j = 0; j < kColumns; j += 2) {
        if (row(i) >= range.count || v + column(j) >= x.dim) continue;
        const float2 pair =
            unpack<T>(*reinterpret_cast<const uint32_t *>(data + row(i) * x.strides.token + column(j)));
        sums[i] = fmaf(product.at(i, j), pair.x, fmaf(product.at(i, j + 1), pair.y, sums[i]));
      }
  }
};

}  // namespace lasp::gpu::mma
