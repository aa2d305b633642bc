// The products of decay_products.cuh in IEEE float32 on the CUDA cores, of tensors of any type, stride and
// alignment; and the sum of what the tiles have left. A thread owns 8 rows by 4 columns.
#include "decay_products.cuh"

namespace lasp::gpu {
namespace {

using namespace products;

struct Float32 {
  static constexpr int kRows = 8, kColumns = 4, kLanes = kTokens / kColumns, kGroups = kTokens / kRows, kDepth = 16;
  struct Product {
    float x[kRows][kColumns];
    __device__ float &at(int i, int j) { return x[i][j]; }
    __device__ float at(int i, int j) const { return x[i][j]; }
  };
  using Tile = float[kDepth][kTokens + 4];  // the dimension that is summed over, then tokens or columns
  struct Tiles {
    Tile left[2], right[2];
  };

  __device__ static int group() { return threadIdx.x / kLanes; }
  __device__ static int row(int i) { return group() * kRows + i; }
  __device__ static int column(int j) { return threadIdx.x % kLanes * kColumns + j; }

  // Elements [from, from + kDepth) of a tile's tokens; what does not exist is zero.
  __device__ static void load_tokens(Tile &to, const Tensor &x, const DecayGradient &p, const Place &place,
                                     int from) {
    const int d = threadIdx.x % kDepth, first = threadIdx.x / kDepth;
    const int64_t base = offset_of(x, place.row, place.begin, place.head, p.heads) + from + d;
    constexpr int kStep = kThreads / kDepth, kCount = kTokens / kStep;
    float value[kCount];
    with_elements(x.data, p.dtype, [&](const auto *data) {
      data += base + first * x.strides.token;
#pragma unroll
      for (int i = 0; i < kCount; ++i, data += kStep * x.strides.token) {
        value[i] = 0.0f;
        if (from + d < x.dim && first + i * kStep < place.count) value[i] = as_float(*data);
      }
    });
#pragma unroll
    for (int i = 0; i < kCount; ++i) to[d][first + i * kStep] = value[i];
  }

  // Rows [row, row + kDepth), columns [column, column + 64) of both states; returns a part of <S_0, dS_E>.
  __device__ static float load_states(Tile &state, Tile &d_state, const DecayGradient &p, int64_t at, int row,
                                      int column) {
    const int v = threadIdx.x % kTokens;
    float sum = 0;
#pragma unroll
    for (int k = threadIdx.x / kTokens; k < kDepth; k += kThreads / kTokens) {
      const bool there = row + k < p.k.dim && column + v < p.v.dim;
      const int64_t from = at + int64_t{row + k} * p.v.dim + column + v;
      const float x = there ? p.state[from] : 0.0f, y = there ? p.d_state[from] : 0.0f;
      state[k][v] = x;
      d_state[k][v] = y;
      sum = fmaf(x, y, sum);
    }
    return sum;
  }

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

  __device__ static void tokens(Product &product, Tiles &s, const Tensor &x, const Place &x_place, const Tensor &y,
                                const Place &y_place, const DecayGradient &p) {
    for (int from = 0; from < x.dim; from += kDepth) {
      load_tokens(s.left[0], x, p, x_place, from);
      load_tokens(s.right[0], y, p, y_place, from);
      __syncthreads();
      multiply(product, s.left[0], s.right[0]);
      __syncthreads();
    }
  }

  __device__ static float states(Product &queries, Product &keys, Tiles &s, const DecayGradient &p,
                                 const Place &place, int64_t state, int v) {
    float through = 0;
    for (int k = 0; k < p.k.dim; k += kDepth) {
      load_tokens(s.left[0], p.q, p, place, k);
      load_tokens(s.left[1], p.k, p, place, k);
      through += load_states(s.right[0], s.right[1], p, state, k, v);
      __syncthreads();
      multiply(queries, s.left[0], s.right[0]);
      multiply(keys, s.left[1], s.right[1]);
      __syncthreads();
    }
    return through;
  }

  __device__ static void add_rows(float (&sums)[kRows], const Product &product, const Tensor &x,
                                  const DecayGradient &p, const Place &place, int v) {
    const int64_t base = offset_of(x, place.row, place.begin, place.head, p.heads) + v;
#pragma unroll
    for (int i = 0; i < kRows; ++i)
#pragma unroll
      for (int j = 0; j < kColumns; ++j)
        if (row(i) < place.count && v + column(j) < x.dim)
          sums[i] = fmaf(product.at(i, j),
                         load_element(x.data, p.dtype, base + row(i) * x.strides.token + column(j)), sums[i]);
  }
};

// A token's parts of all tiles. Per head they are then to be summed: `totals` [B, H, T].
__global__ void decay_sums_kernel(int64_t first, DecayGradient p, float *totals) {
  const int64_t at = (first + blockIdx.x) * blockDim.x + threadIdx.x, item = at / p.run_tokens;
  if (item >= p.num_runs * p.heads) return;
  const Run &run = p.runs[item / p.heads];
  const int token = static_cast<int>(at % p.run_tokens), head = static_cast<int>(item % p.heads);
  if (token >= run.length) return;
  Parts parts(nullptr, p.run_tokens);
  parts.base = p.parts + item * parts.floats();
  const int tiles = (run.length + kTokens - 1) / kTokens, tile = token / kTokens, t = token % kTokens;
  float sum = parts.own(tile)[t] + parts.through();
  for (int earlier = 0; earlier < tile; ++earlier) sum += parts.before(earlier);
  for (int later = tile + 1; later < tiles; ++later) {
    sum += parts.after(later) + parts.columns(Parts::pair(later, tile))[t];
    for (int earlier = 0; earlier < tile; ++earlier) sum += parts.all(Parts::pair(later, earlier));
  }
  if (totals != nullptr) {
    totals[(run.row * p.heads + head) * p.tokens + run.begin + token] = sum;
  } else {
    store_element(p.d_g, p.decay_dtype, offset_of(p.d_g_strides, run.row, run.begin + token, head), sum);
  }
}

}  // namespace

int64_t decay_products_parts(const DecayGradient &p) {
  return p.num_runs * p.heads * Parts(nullptr, p.run_tokens).floats();
}

int launch_decay_products(const DecayGradient &p, float *totals, Stream stream) {
  const int error = mma::decay_products_supported(p) ? mma::launch_decay_products(p, stream)
                                                     : products::launch<Float32>(p, stream);
  if (error) return error;
  constexpr int kSumThreads = 256;
  return launch_blocks(decay_sums_kernel, ceil_div(p.num_runs * p.heads * p.run_tokens, kSumThreads), kSumThreads,
                       0, stream, p, totals);
}

int load_decay_products() {
  const int error = mma::load_decay_products();
  return error ? error : load_kernels(decay_products_kernel<Float32>, decay_sums_kernel);
}

}  // namespace lasp::gpu
