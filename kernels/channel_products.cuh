// The gradient of a log decay per key channel d, for runs of at most 64 tokens. With S_0 the state before a run of
// n tokens, dS_E the gradient of the state after them, E(j, i) = exp(g_j + .. + g_i) for the channel, and
//
//   a_i  = (S_0 do_i)_d     b_j = (dS_E v_j)_d     c = sum over v of S_0[d, v] dS_E[d, v]     w_ij = do_i . v_j
//
// every path from an earlier token to a later one that crosses t is counted once:
//
//   d_g[t, d] = sum_{i >= t} E(0, i) q_i a_i  +  sum_{j < t} E(j+1, n-1) k_j b_j  +  E(0, n-1) c
//             + sum_{i >= t > j} E(j+1, i) q_i k_j w_ij          (q with the scale)
//
// All are sums of products of decays, never differences of sums, so that strong decay, whose gradient is tiny
// beside q dq, is right too. (docs/internals/arithmetic.md has the CPU's form of the same.)
//
// A block owns (run, head, 64 channels). a, b and w are products of matrices (products.cuh). Then a warp takes 16
// of the tokens, M, a lane a channel: what lies between the run's edges and M's is brought to M, so that S_0
// becomes the state before M and dS_E the gradient after it,
//
//   a_i  becomes  E(0, M-1) a_i + sum_{j < M} E(j+1, M-1) k_j w_ij     for all i from M's on
//   b_j  becomes  E(M+16, n-1) b_j + sum_{i >= M+16} E(M+16, i) q_i w_ij     for M's j
//   c    becomes  E(0, M-1) E(M+16, n-1) c + E(M+16, n-1) sum_{j < M} E(j+1, M-1) k_j b_j
//                 + sum_{i >= M+16} E(M+16, i) q_i a_i (the new one)
//
// and the formula above is taken of 16 tokens.
//
// Its one barrier is __syncthreads, all 128 threads: between filling a tile and its products, between the products
// and the parts that read them, and, for every 32 channels, before and after the parts read each other's scaled q
// and k:
//
//   | a, b, c | w | 32 channels: E q, E k | sync | d_g | sync | 32 channels: E q, E k | sync | d_g |
#pragma once

#include "decay_products.h"
#include "products.cuh"

namespace lasp::gpu::products {

constexpr int kPart = 16, kParts = kTokens / kPart, kWarpSize = 32;

// What parts want of each other.
struct ScaledTokens {
  float queries[kTokens][kWarpSize];  // E(M, i) q_i from the beginning of i's part
  float keys[kTokens][kWarpSize];     // E(j+1, M+15) k_j to the end of j's
};

template <class Products>
struct ChannelShared {
  struct Found {
    float of_state[kTokens][kTokens], of_gradient[kTokens][kTokens];  // a, b: token, channel
    float scores[kTokens][kTokens + 4];  // w_ij at [i][j] and [j][i], j < i; nothing on the diagonal
    union {
      typename Products::Pairs pairs;  // for the scores
      ScaledTokens scaled;             // afterwards
    };
  };
  union {
    typename Products::RowTiles rows;  // for a, b and c
    Found found;
  };
  float through[kTokens];           // c
  float decays[kParts][kWarpSize];  // of whole parts
};

// A log decay of base 2 in two parts, so that sums of many are as right as each: `whole` is exact.
struct Log2 {
  float whole = 0, rest = 0;
  __device__ Log2() {}
  // None is below -1e4: what decays so is nothing.
  __device__ explicit Log2(float g) {
    if (is_power_of_two(g, &whole)) return;
    constexpr float kHigh = 1.44269502162933349609375f, kLow = 1.92596299112661746887e-8f;  // 1 / ln 2
    if (g < -6931.0f) g = -6931.0f;
    whole = rintf(g * kHigh);
    rest = fmaf(g, kHigh, -whole) + g * kLow;
  }
  __device__ void add(const Log2 &x) {
    const float sum = rest + x.rest, nearest = rintf(sum);
    whole += x.whole + nearest;
    rest = sum - nearest;
  }
  __device__ float power() const { return exp2f(rest) * exp2f(whole); }
  __device__ float power_up_to(const Log2 &end) const { return exp2f(end.rest - rest) * exp2f(end.whole - whole); }
};

// A lane's channel at the tokens of a part. Where there is no token or no channel: q and k of 0 and no decay.
struct Channel {
  float q[kPart], k[kPart], g[kPart];

  __device__ Channel(const DecayGradient &p, const TileRange &range, int part, int d) {
    const int first = part * kPart, count = d < p.k.dim ? range.count - first : 0;
    const int64_t token = range.begin + first;
    load(q, p.q.data, p.dtype, offset_of(p.q, range.row, token, range.head, p.heads) + d, p.q.strides.token, count);
    load(k, p.k.data, p.dtype, offset_of(p.k, range.row, token, range.head, p.heads) + d, p.k.strides.token, count);
    load(g, p.g, p.decay_dtype, offset_of(p.g_strides, range.row, token, range.head) + d, p.g_strides.token, count);
#pragma unroll
    for (int t = 0; t < kPart; ++t) q[t] *= p.scale;
  }

 private:
  __device__ static void load(float (&to)[kPart], const void *data, DType type, int64_t at, int64_t stride,
                              int count) {
    with_elements(data, type, [&](const auto *elements) {
#pragma unroll
      for (int t = 0; t < kPart; ++t) to[t] = t < count ? as_float(elements[at + t * stride]) : 0.0f;
    });
  }
};

// y += x * four neighbours each; `from` is the same for all lanes.
__device__ inline void add_scores(float (&y)[kPart], float x, const float *from) {
  float w[kPart];
  load_vector(w, from);
#pragma unroll
  for (int i = 0; i < kPart; ++i) y[i] = fmaf(x, w[i], y[i]);
}

// To shared memory what other parts want of this one, with all decays inside it.
template <class Products>
__device__ void scale_part(ChannelShared<Products> &s, const Channel &c, int part) {
  const int lane = threadIdx.x % kWarpSize;
  Log2 sum[kPart];
#pragma unroll
  for (int t = 0; t < kPart; ++t) {
    if (t > 0) sum[t] = sum[t - 1];
    sum[t].add(Log2(c.g[t]));
  }
#pragma unroll
  for (int t = 0; t < kPart; ++t) {
    s.found.scaled.queries[part * kPart + t][lane] = sum[t].power() * c.q[t];
    s.found.scaled.keys[part * kPart + t][lane] = sum[t].power_up_to(sum[kPart - 1]) * c.k[t];
  }
  s.decays[part][lane] = sum[kPart - 1].power();
}

// Of a part alone, with a, b, c of it: the formula of 16 tokens.
template <class Products>
__device__ void part_gradient(float (&out)[kPart], const ChannelShared<Products> &s, const Channel &c, int part,
                              const float (&a)[kPart], const float (&b)[kPart], float through) {
  const int lane = threadIdx.x % kWarpSize, first = part * kPart;
  float e[kPart];
#pragma unroll
  for (int t = 0; t < kPart; ++t) e[t] = decay_of(c.g[t]);
  float sum = 0;
#pragma unroll
  for (int t = kPart - 1; t >= 0; --t) {
    sum = fmaf(s.found.scaled.queries[first + t][lane], a[t], sum);
    out[t] = sum + through;
  }
  sum = 0;
#pragma unroll
  for (int t = 1; t < kPart; ++t) {
    sum = fmaf(s.found.scaled.keys[first + t - 1][lane], b[t - 1], sum);
    out[t] += sum;
  }
  float z[kPart] = {};  // sum_{i >= t} E(t+1, i) q_i w_ij, for each j < t
#pragma unroll
  for (int t = kPart - 1; t > 0; --t) {
    float decay = e[t], crossing = 0;
#pragma unroll
    for (int j = t - 1; j >= 0; --j) {
      z[j] = fmaf(c.q[t], s.found.scores[first + t][first + j], t + 1 < kPart ? e[t + 1] * z[j] : 0.0f);
      crossing = fmaf(decay * c.k[j], z[j], crossing);
      decay *= e[j];
    }
    out[t] += crossing;
  }
}

// The decay of the parts [from, to).
template <class Products>
__device__ float decay_of_parts(const ChannelShared<Products> &s, int from, int to) {
  float product = 1;
  for (int part = from; part < to; ++part) product *= s.decays[part][threadIdx.x % kWarpSize];
  return product;
}

template <class Products>
__device__ void channel_gradient(float (&out)[kPart], const ChannelShared<Products> &s, const Channel &c, int part,
                                 int column) {
  const int lane = threadIdx.x % kWarpSize, first = part * kPart;
  const float before = decay_of_parts(s, 0, part), after = decay_of_parts(s, part + 1, kParts);

  // a of each later part, and last of this one; what later ones send through this one.
  float a[kPart], later = 0;
#pragma unroll 1
  for (int at = kParts - 1;; --at) {
#pragma unroll
    for (int i = 0; i < kPart; ++i) a[i] = 0;
#pragma unroll 1
    for (int j = 0; j < first; ++j) {
      if (j > 0 && j % kPart == 0) {
        const float decay = s.decays[j / kPart][lane];
#pragma unroll
        for (int i = 0; i < kPart; ++i) a[i] *= decay;
      }
      add_scores(a, s.found.scaled.keys[j][lane], &s.found.scores[j][at * kPart]);
    }
#pragma unroll
    for (int i = 0; i < kPart; ++i) a[i] = fmaf(before, s.found.of_state[at * kPart + i][column], a[i]);
    if (at == part) break;
    later *= s.decays[at][lane];
#pragma unroll
    for (int i = 0; i < kPart; ++i) later = fmaf(s.found.scaled.queries[at * kPart + i][lane], a[i], later);
  }

  float b[kPart] = {};
#pragma unroll 1
  for (int i = kTokens - 1; i >= first + kPart; --i) {
    if (i < kTokens - 1 && i % kPart == kPart - 1) {
      const float decay = s.decays[i / kPart][lane];
#pragma unroll
      for (int j = 0; j < kPart; ++j) b[j] *= decay;
    }
    add_scores(b, s.found.scaled.queries[i][lane], &s.found.scores[i][first]);
  }
#pragma unroll
  for (int j = 0; j < kPart; ++j) b[j] = fmaf(after, s.found.of_gradient[first + j][column], b[j]);

  float earlier = 0;
#pragma unroll 1
  for (int j = 0; j < first; ++j) {
    if (j % kPart == 0) earlier *= s.decays[j / kPart][lane];
    earlier = fmaf(s.found.scaled.keys[j][lane], s.found.of_gradient[j][column], earlier);
  }
  const float through = fmaf(after, fmaf(before, s.through[column], earlier), later);
  part_gradient(out, s, c, part, a, b, s.decays[part][lane] * through);
}

template <class Products>
__device__ void store_product(float (&to)[kTokens][kTokens], const typename Products::Product &product) {
#pragma unroll
  for (int i = 0; i < Products::kRows; ++i)
#pragma unroll
    for (int j = 0; j < Products::kColumns; ++j) to[Products::row(i)][Products::column(j)] = product.at(i, j);
}

// a, b, c and w.
template <class Products>
__device__ void find_products(ChannelShared<Products> &s, const DecayGradient &p, const TileRange &range,
                              int64_t state, int row) {
  typename Products::Product queries = {}, keys = {}, scores = {};
  float through[Products::kStateRows] = {};
  Products::state_rows(queries, keys, through, s.rows, p, range, state, row);
  store_product<Products>(s.found.of_state, queries);
  store_product<Products>(s.found.of_gradient, keys);
#pragma unroll
  for (int i = 0; i < Products::kStateRows; ++i) {
    const float sum = sum_lanes(through[i], Products::kRowLanes);
    if (threadIdx.x % Products::kRowLanes == 0) s.through[Products::state_row(i)] = sum;
  }
  Products::tokens(scores, s.found.pairs, p.d_o, range, p.v, range, p);
#pragma unroll
  for (int i = 0; i < Products::kRows; ++i)
#pragma unroll
    for (int j = 0; j < Products::kColumns; ++j) {
      const int to = Products::row(i), from = Products::column(j);
      if (to > from) s.found.scores[to][from] = s.found.scores[from][to] = scores.at(i, j);
    }
}

// Blocks of a multiprocessor, whose shared memory they fill with 70 KiB each: 228 KiB in 9.0, but 100 from 12.0 on.
#if __CUDA_ARCH__ >= 1200
constexpr int kChannelBlocks = 1;
#else
constexpr int kChannelBlocks = 3;
#endif

template <class Products>
__global__ void __launch_bounds__(kThreads, kChannelBlocks)
    channel_products_kernel(int64_t first, DecayGradient p) {
  extern __shared__ __align__(128) unsigned char memory[];
  ChannelShared<Products> &s = *reinterpret_cast<ChannelShared<Products> *>(memory);
  const int tiles = (p.k.dim + kTokens - 1) / kTokens;
  const int64_t item = first + blockIdx.x;
  const int row = static_cast<int>(item % tiles) * kTokens, head = static_cast<int>(item / tiles % p.heads);
  const Run &run = p.runs[item / tiles / p.heads];
  if (run.length == 0) return;
  const TileRange range = tile_range(run, head, 0);
  find_products(s, p, range, (run.state * p.heads + head) * p.k.dim * p.v.dim, row);
  const int part = threadIdx.x / kWarpSize;
#pragma unroll 1
  for (int column = threadIdx.x % kWarpSize; column < kTokens; column += kWarpSize) {
    const int d = row + column;
    const Channel c(p, range, part, d);
    scale_part(s, c, part);
    __syncthreads();
    float out[kPart];
    channel_gradient(out, s, c, part, column);
    const int64_t to = offset_of(p.d_g_strides, range.row, range.begin + part * kPart, head) + d;
#pragma unroll
    for (int t = 0; t < kPart; ++t)
      if (part * kPart + t < range.count && d < p.k.dim)
        put_element(p.d_g, p.d_g_float32 ? DType::kFloat32 : p.decay_dtype, to + t * p.d_g_strides.token, out[t],
                    p.d_g_adds);
    __syncthreads();
  }
}

template <class Products>
int launch_channel(const DecayGradient &p, Stream stream) {
  const int64_t blocks = p.num_runs * p.heads * ceil_div(p.k.dim, kTokens);
  return launch_blocks(channel_products_kernel<Products>, blocks, kThreads, sizeof(ChannelShared<Products>), stream,
                       p);
}

template <class Products>
int load_channel() {
  return load_kernel(channel_products_kernel<Products>, sizeof(ChannelShared<Products>));
}

}  // namespace lasp::gpu::products
