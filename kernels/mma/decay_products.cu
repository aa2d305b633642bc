// The products of decay_products.cuh on tensor cores, of 16-bit tensors: exact products, float32 sums. The states
// are a high and a low 16-bit part, so that they lose nothing that counts; float16 holds them up to 65,504, as it
// does those of the plan's passes. A warp owns 16 rows, a lane two of them.
#include "../decay_products.cuh"
#include "channel_host.h"
#include "ptx.cuh"

namespace lasp::gpu::mma {
namespace {

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
  struct Tiles {
    alignas(16) TokenTile tokens[2];
    alignas(16) StateTile states[2][2];  // S_0, dS_E; high, low
  };

  __device__ static int lane() { return threadIdx.x % 32; }
  __device__ static int group() { return threadIdx.x / kLanes; }
  __device__ static int row(int i) { return threadIdx.x / 32 * 16 + lane() / 4 + 8 * i; }
  __device__ static int column(int j) { return j / 2 * 8 + lane() % 4 * 2 + j % 2; }

  // Elements [from, from + kDepth) of a tile's tokens; what does not exist is zero.
  __device__ static void copy_tokens(TokenTile &to, const Tensor &x, const DecayGradient &p, const Place &place,
                                     int from) {
    const T *data =
        static_cast<const T *>(x.data) + offset_of(x, place.row, place.begin, place.head, p.heads) + from;
    constexpr int kCopies = kDepth / 8;  // of a token
#pragma unroll
    for (int n = threadIdx.x; n < kTokens * kCopies; n += kThreads) {
      const int token = n / kCopies, d = n % kCopies * 8;
      const bool there = token < place.count && from + d < x.dim;
      copy_16(shared_address(&to[token][d]), there ? data + token * x.strides.token + d : x.data, there);
    }
  }

  __device__ static void split(StateTile (&to)[2], const float4 &x, int k, int v) {
    const uint2 high = {pack<T>(x.x, x.y), pack<T>(x.z, x.w)};
    const uint2 low = {pack_rest<T>(x.x, x.y, high.x), pack_rest<T>(x.z, x.w, high.y)};
    *reinterpret_cast<uint2 *>(&to[0][k][v]) = high;
    *reinterpret_cast<uint2 *>(&to[1][k][v]) = low;
  }

  // Rows [row, row + kDepth), columns [column, column + 64) of both states; returns a part of <S_0, dS_E>.
  __device__ static float load_states(StateTile (&to)[2][2], const DecayGradient &p, int64_t at, int row,
                                      int column) {
    constexpr int kAcross = kTokens / 4;
    const int v = threadIdx.x % kAcross * 4;
    float sum = 0;
#pragma unroll
    for (int k = threadIdx.x / kAcross; k < kDepth; k += kThreads / kAcross) {
      float4 x = {}, y = {};
      if (row + k < p.k.dim && column + v < p.v.dim) {
        const int64_t from = at + int64_t{row + k} * p.v.dim + column + v;
        x = *reinterpret_cast<const float4 *>(p.state + from);
        y = *reinterpret_cast<const float4 *>(p.d_state + from);
      }
      split(to[0], x, k, v);
      split(to[1], y, k, v);
      sum = fmaf(x.x, y.x, fmaf(x.y, y.y, fmaf(x.z, y.z, fmaf(x.w, y.w, sum))));
    }
    return sum;
  }

  // The warp's 16 rows, columns [d, d + 16) of the dimension that is summed over.
  __device__ static void load_left(uint32_t (&a)[4], const TokenTile &from, int d) {
    load_matrices(a, shared_address(&from[threadIdx.x / 32 * 16 + lane() % 16][d + lane() / 16 * 8]));
  }

  __device__ static void tokens(Product &product, Tiles &s, const Tensor &x, const Place &x_place, const Tensor &y,
                                const Place &y_place, const DecayGradient &p) {
    for (int from = 0; from < x.dim; from += kDepth) {
      copy_tokens(s.tokens[0], x, p, x_place, from);
      copy_tokens(s.tokens[1], y, p, y_place, from);
      copies_commit();
      copies_wait<0>();
      __syncthreads();
#pragma unroll
      for (int d = 0; d < kDepth; d += 16) {
        uint32_t a[4];
        load_left(a, s.tokens[0], d);
#pragma unroll
        for (int n = 0; n < kTokens; n += 16) {
          uint32_t b[4];
          load_matrices(b, shared_address(&s.tokens[1][n + lane() / 16 * 8 + lane() % 8][d + lane() / 8 % 2 * 8]));
          multiply<T>(product.x[n / 8], a, b[0], b[1]);
          multiply<T>(product.x[n / 8 + 1], a, b[2], b[3]);
        }
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
                                 const Place &place, int64_t state, int v) {
    float through = 0;
    for (int k = 0; k < p.k.dim; k += kDepth) {
      copy_tokens(s.tokens[0], p.q, p, place, k);
      copy_tokens(s.tokens[1], p.k, p, place, k);
      copies_commit();
      through += load_states(s.states, p, state, k, v);
      copies_wait<0>();
      __syncthreads();
#pragma unroll
      for (int d = 0; d < kDepth; d += 16) {
        uint32_t a[4];
        load_left(a, s.tokens[0], d);
        multiply_state(queries, a, s.states[0], d);
        load_left(a, s.tokens[1], d);
        multiply_state(keys, a, s.states[1], d);
      }
      __syncthreads();
    }
    return through;
  }

  __device__ static void add_rows(float (&sums)[kRows], const Product &product, const Tensor &x,
                                  const DecayGradient &p, const Place &place, int v) {
    const T *data = static_cast<const T *>(x.data) + offset_of(x, place.row, place.begin, place.head, p.heads) + v;
#pragma unroll
    for (int i = 0; i < kRows; ++i)
#pragma unroll
      for (int j = 0; j < kColumns; j += 2) {
        if (row(i) >= place.count || v + column(j) >= x.dim) continue;
        const float2 pair =
            unpack<T>(*reinterpret_cast<const uint32_t *>(data + row(i) * x.strides.token + column(j)));
        sums[i] = fmaf(product.at(i, j), pair.x, fmaf(product.at(i, j + 1), pair.y, sums[i]));
      }
  }
};

bool aligned(const Tensor &x) {
  return x.dim % 8 == 0 && channel::pieces_of_16(x.data, x.strides, sizeof(uint16_t));
}

}  // namespace

bool decay_products_supported(const DecayGradient &p) {
  return p.tensor_cores && p.dtype != DType::kFloat32 && aligned(p.q) && aligned(p.k) && aligned(p.v) &&
         aligned(p.d_o) && reinterpret_cast<uintptr_t>(p.state) % 16 == 0 &&
         reinterpret_cast<uintptr_t>(p.d_state) % 16 == 0;
}

int launch_decay_products(const DecayGradient &p, Stream stream) {
  return p.dtype == DType::kBFloat16 ? products::launch<TensorCores<__nv_bfloat16>>(p, stream)
                                     : products::launch<TensorCores<__half>>(p, stream);
}

int load_decay_products() {
  return load_kernels(decay_products_kernel<TensorCores<__nv_bfloat16>>,
                      decay_products_kernel<TensorCores<__half>>);
}

}  // namespace lasp::gpu::mma
