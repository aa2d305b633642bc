// The products of products.cuh in IEEE float32 on the CUDA cores, of tensors of any type, stride and alignment. A
// thread owns 8 rows by 4 columns.
#pragma once

#include "products.cuh"

namespace lasp::gpu::products {

struct Float32 {
  static constexpr int kRows = 8, kColumns = 4, kLanes = kTokens / kColumns, kGroups = kTokens / kRows, kDepth = 16;
  struct Product {
    float x[kRows][kColumns];
    __device__ float &at(int i, int j) { return x[i][j]; }
    __device__ float at(int i, int j) const { return x[i][j]; }
  };
  using Tile = float[kDepth][kTokens + 4];  // the dimension that is summed over, then tokens or columns
  struct Pairs {
    Tile left, right;
  };
  struct Tiles {
    Pairs pairs, other;
  };
  using RowTiles = Tiles;
  static constexpr int kRowLanes = kDepth, kStateRows = kTokens * kRowLanes / kThreads;

  __device__ static int group() { return threadIdx.x / kLanes; }
  __device__ static int row(int i) { return group() * kRows + i; }
  __device__ static int column(int j) { return threadIdx.x % kLanes * kColumns + j; }
  __device__ static int state_row(int i) { return StatePiece<true>::row(i); }

  // What a thread takes to shared memory is fetched into registers while the products before it are found. Of a
  // tile's tokens elements [from, from + kDepth); what does not exist is zero.
  struct TokenPiece {
    static constexpr int kStep = kThreads / kDepth, kCount = kTokens / kStep;
    float value[kCount];

    __device__ void fetch(const Tensor &x, const DecayGradient &p, const TileRange &range, int from) {
      const int d = from + threadIdx.x % kDepth, first = threadIdx.x / kDepth;
      const int64_t base = offset_of(x, range.row, range.begin, range.head, p.heads) + d;
      with_elements(x.data, p.dtype, [&](const auto *data) {
        data += base + first * x.strides.token;
#pragma unroll
        for (int i = 0; i < kCount; ++i, data += kStep * x.strides.token) {
          value[i] = 0.0f;
          if (d < x.dim && first + i * kStep < range.count) value[i] = as_float(*data);
        }
      });
    }
    __device__ void store(Tile &to) const {
#pragma unroll
      for (int i = 0; i < kCount; ++i) to[threadIdx.x % kDepth][threadIdx.x / kDepth + i * kStep] = value[i];
    }
  };

  // Of both states kDepth rows by 64 columns, or kTokens rows by kDepth columns and then transposed.
  template <bool kTransposed>
  struct StatePiece {
    static constexpr int kAcross = kTransposed ? kDepth : kTokens, kDown = kThreads / kAcross,
                         kCount = (kTransposed ? kTokens : kDepth) / kDown;
    float state[kCount], gradient[kCount];

    __device__ static int row(int i) { return threadIdx.x / kAcross + i * kDown; }
    __device__ static int column() { return threadIdx.x % kAcross; }
    __device__ void fetch(const DecayGradient &p, int64_t at, int first_row, int first_column) {
      const int v = first_column + column();
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const bool there = first_row + row(i) < p.k.dim && v < p.v.dim;
        const int64_t from = at + int64_t{first_row + row(i)} * p.v.dim + v;
        state[i] = there ? p.state[from] : 0.0f;
        gradient[i] = there ? p.d_state[from] : 0.0f;
      }
    }
    __device__ void store(Tiles &to) const {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const int k = kTransposed ? column() : row(i), v = kTransposed ? row(i) : column();
        to.pairs.right[k][v] = state[i];
        to.other.right[k][v] = gradient[i];
      }
    }
  };

  // product += left^T right, of this thread's rows and columns.
  __device__ static void multiply(Product &product, const Tile &left, const Tile &right) {
#pragma unroll 4
    for (int d = 0; d < kDepth; ++d) {
      float x[kRows], y[kColumns];
      load_vector(x, left[d] + row(0));
      load_vector(y, right[d] + column(0));
#pragma unroll
      for (int i = 0; i < kRows; ++i)
#pragma unroll
        for (int j = 0; j < kColumns; ++j) product.at(i, j) = fmaf(x[i], y[j], product.at(i, j));
    }
  }

  __device__ static void tokens(Product &product, Pairs &s, const Tensor &x, const TileRange &x_range,
                                const Tensor &y, const TileRange &y_range, const DecayGradient &p) {
    TokenPiece left, right;
    left.fetch(x, p, x_range, 0);
    right.fetch(y, p, y_range, 0);
#pragma unroll 1
    for (int from = 0; from < x.dim; from += kDepth) {
      left.store(s.left);
      right.store(s.right);
      __syncthreads();
      left.fetch(x, p, x_range, from + kDepth);
      right.fetch(y, p, y_range, from + kDepth);
      multiply(product, s.left, s.right);
      __syncthreads();
    }
  }

  // One step of `states` or `state_rows`: the tokens of x and y, and a piece of both states.
  template <bool kTransposed>
  struct Step {
    TokenPiece x, y;
    StatePiece<kTransposed> states;

    __device__ void fetch(const Tensor &of_x, const Tensor &of_y, const DecayGradient &p, const TileRange &range,
                          int from, int64_t state, int other) {
      x.fetch(of_x, p, range, from);
      y.fetch(of_y, p, range, from);
      states.fetch(p, state, kTransposed ? other : from, kTransposed ? from : other);
    }
    __device__ void store(Tiles &to) const {
      x.store(to.pairs.left);
      y.store(to.other.left);
      states.store(to);
    }
  };

  __device__ static float states(Product &queries, Product &keys, Tiles &s, const DecayGradient &p,
                                 const TileRange &range, int64_t state, int v) {
    float through = 0;
#pragma unroll 1
    for (int k = 0; k < p.k.dim; k += kDepth) {
      Step<false> step;  // ahead of its use there are no registers for it
      step.fetch(p.q, p.k, p, range, k, state, v);
      step.store(s);
#pragma unroll
      for (int i = 0; i < step.states.kCount; ++i)
        through = fmaf(step.states.state[i], step.states.gradient[i], through);
      __syncthreads();
      multiply(queries, s.pairs.left, s.pairs.right);
      multiply(keys, s.other.left, s.other.right);
      __syncthreads();
    }
    return through;
  }

  __device__ static void state_rows(Product &queries, Product &keys, float (&through)[kStateRows], Tiles &s,
                                    const DecayGradient &p, const TileRange &range, int64_t state, int row) {
    Step<true> step;
    static_assert(step.states.kCount == kStateRows && step.states.kAcross == kRowLanes);
    step.fetch(p.d_o, p.v, p, range, 0, state, row);
#pragma unroll 1
    for (int v = 0; v < p.v.dim; v += kDepth) {
      step.store(s);
#pragma unroll
      for (int i = 0; i < kStateRows; ++i)
        through[i] = fmaf(step.states.state[i], step.states.gradient[i], through[i]);
      __syncthreads();
      step.fetch(p.d_o, p.v, p, range, v + kDepth, state, row);
      multiply(queries, s.pairs.left, s.pairs.right);
      multiply(keys, s.other.left, s.other.right);
      __syncthreads();
    }
  }

  __device__ static void add_rows(float (&sums)[kRows], const Product &product, const Tensor &x,
                                  const DecayGradient &p, const TileRange &range, int v) {
    const int64_t base = offset_of(x, range.row, range.begin, range.head, p.heads) + v;
#pragma unroll
    for (int i = 0; i < kRows; ++i)
#pragma unroll
      for (int j = 0; j < kColumns; ++j)
        if (row(i) < range.count && v + column(j) < x.dim)
          sums[i] = fmaf(product.at(i, j),
                         load_element(x.data, p.dtype, base + row(i) * x.strides.token + column(j)), sums[i]);
  }
};

}  // namespace lasp::gpu::products
