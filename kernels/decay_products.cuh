// The gradient of a log decay that is one number a token (per head, or per token and head), for runs of at most
// 256 tokens: the gradient of every token with its sums over channels as products of matrices. With S_0 the
// state before the run's n tokens, dS_E the gradient of the state after them, E(j, i) = exp(g_j + .. + g_i):
//
//   d_g[t] = sum_{i >= t} E(0, i) a_i  +  sum_{j < t} E(j+1, n-1) b_j  +  E(0, n-1) <S_0, dS_E>
//            +  sum_{i >= t > j} M_ij
//   a_i  = scale q_i . S_0 do_i
//   b_j  = k_j . dS_E v_j
//   M_ij = scale E(j+1, i) (q_i . k_j) (do_i . v_j)
//
// All are sums of products of decays, never differences of sums, so that strong decay is right too.
//
// A block owns (run, head, 64 of the tokens): their scores with each 64 tokens before them and with themselves,
// then their Q S_0 and K dS_E, 64 columns of V at a time, each row of them multiplied by do and v where it lies.
// What a tile's sums add to the tokens of others goes through the workspace: with I the later tile and J the
// earlier,
//
//   t in J:   the sum of M over all i in I and j < t
//   between:  all of M
//   t in I:   the sum over all j in J and i >= t
//
// How the products are found is `Products` (products.cuh).
//
// A block has 128 threads, which share all its work. Blocks do not meet: decay_sums_kernel (decay_products.cu) adds
// up what they leave. The one barrier is __syncthreads, all threads: between filling a tile and its products, and
// between a thread's sums and their readers. Of tile I:
//
//   | logs, summed | M with tile 0 | .. | M with tile I - 1 | M with itself | Q S_0, K dS_E by 64 columns | sums |
#pragma once

#include "decay_products.h"
#include "products.cuh"

namespace lasp::gpu::products {

template <class Products>
struct Shared {
  union {
    typename Products::Tiles tiles;
    float scores[kTokens][kTokens + 1];
  };
  double log[kDecayProductRun];  // of base 2, summed up to and with each token of the run
  float after[kTokens], before[kTokens], columns[kTokens];
  float through[kThreads / 32];
};

// What one (run, head) leaves in the workspace.
struct Parts {
  float *base;
  int width, tiles;  // tokens of a tile, tiles of a run
  __host__ __device__ Parts(float *data, int64_t run_tokens)
      : base(data),
        width(static_cast<int>(run_tokens < kTokens ? run_tokens : kTokens)),
        tiles(static_cast<int>((run_tokens + kTokens - 1) / kTokens)) {}
  __host__ __device__ int pairs() const { return tiles * (tiles - 1) / 2; }
  __host__ __device__ int floats() const { return (tiles + pairs()) * width + 2 * tiles + pairs() + 1; }
  __device__ static int pair(int later, int earlier) { return later * (later - 1) / 2 + earlier; }
  __device__ float *own(int tile) const { return base + tile * width; }  // what a tile knows of its own tokens
  __device__ float *columns(int pair) const { return base + (tiles + pair) * width; }  // of M, all i, j < t
  __device__ float *scalars() const { return base + (tiles + pairs()) * width; }
  __device__ float &after(int tile) const { return scalars()[tile]; }            // sum of E(0, i) a_i
  __device__ float &before(int tile) const { return scalars()[tiles + tile]; }   // sum of E(j+1, n-1) b_j
  __device__ float &all(int pair) const { return scalars()[2 * tiles + pair]; }  // of M
  __device__ float &through() const { return scalars()[2 * tiles + pairs()]; }   // E(0, n-1) <S_0, dS_E>
};

// The log of base 2: a whole number where the decay is a power of two. None is below -1e4: what decays so is
// nothing.
__device__ inline double log2_decay(float g) {
  float r;
  const double log = is_power_of_two(g, &r) ? static_cast<double>(r) : 1.4426950408889634 * static_cast<double>(g);
  return log < -1e4 ? -1e4 : log;
}

// 2^x, as right for a large x as for a small one.
__device__ inline float power_of_two(double x) {
  const double whole = rint(x);
  return exp2f(static_cast<float>(x - whole)) * exp2f(static_cast<float>(whole));
}

// Of all tokens of the run, by the first warp.
template <class Products>
__device__ void sum_logs(Shared<Products> &s, const DecayGradient &p, const Run &run, int head) {
  if (threadIdx.x >= 32) return;
  constexpr int kEach = kDecayProductRun / 32;
  const int lane = threadIdx.x;
  double log[kEach], sum = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int t = lane * kEach + i;
    if (t < run.length)
      sum +=
          log2_decay(p.decay == Decay::kHead
                         ? static_cast<const float *>(p.g)[head]
                         : load_element(p.g, p.decay_dtype, offset_of(p.g_strides, run.row, run.begin + t, head)));
    log[i] = sum;
  }
  double before = sum;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const double other = __shfl_up_sync(0xffffffffu, before, step);
    if (lane >= step) before += other;
  }
  before = __shfl_up_sync(0xffffffffu, before, 1);
#pragma unroll
  for (int i = 0; i < kEach; ++i) s.log[lane * kEach + i] = lane == 0 ? log[i] : before + log[i];
}

// M between a tile and one before it or itself, where there is none of later tokens.
template <class Products>
__device__ void find_scores(typename Products::Product &scores, Shared<Products> &s, const DecayGradient &p,
                            const Run &run, int head, int tile, int earlier_tile) {
  const TileRange later = tile_range(run, head, tile), earlier = tile_range(run, head, earlier_tile);
  typename Products::Product values = {};
  Products::tokens(scores, s.tiles.pairs, p.q, later, p.k, earlier, p);
  Products::tokens(values, s.tiles.pairs, p.d_o, later, p.v, earlier, p);
#pragma unroll
  for (int i = 0; i < Products::kRows; ++i)
#pragma unroll
    for (int j = 0; j < Products::kColumns; ++j) {
      const int to = tile * kTokens + Products::row(i), from = earlier_tile * kTokens + Products::column(j);
      const auto decay = [&] { return power_of_two(s.log[to] - s.log[from]); };
      float &score = scores.at(i, j);
      score = to > from ? p.scale * decay() * score * values.at(i, j) : 0.0f;
    }
}

// Of a tile with itself, to token threadIdx.x: the sum over i >= t > j.
template <class Products>
__device__ float own_scores(Shared<Products> &s, const typename Products::Product &scores) {
#pragma unroll
  for (int i = 0; i < Products::kRows; ++i)
#pragma unroll
    for (int j = 0; j < Products::kColumns; ++j) s.scores[Products::row(i)][Products::column(j)] = scores.at(i, j);
  __syncthreads();
  const int t = threadIdx.x;
  float sum = 0;
  if (t < kTokens) {
#pragma unroll 8
    for (int i = kTokens - 1; i >= 0; --i) {
      sum += s.scores[i][t];
      s.scores[i][t] = sum;
    }
  }
  __syncthreads();
  sum = 0;
  if (t < kTokens)
    for (int j = 0; j < t; ++j) sum += s.scores[t][j];
  __syncthreads();
  return sum;
}

// Of a tile with an earlier one: to s.after the sum over j; to the other tile's tokens t that over all i and j < t.
template <class Products>
__device__ void earlier_scores(Shared<Products> &s, const typename Products::Product &scores, const Parts &parts,
                               int pair) {
  float sums[Products::kColumns] = {};
#pragma unroll
  for (int i = 0; i < Products::kRows; ++i) {
    float sum = 0;
#pragma unroll
    for (int j = 0; j < Products::kColumns; ++j) {
      sum += scores.at(i, j);
      sums[j] += scores.at(i, j);
    }
    sum = sum_lanes(sum, Products::kLanes);
    if (threadIdx.x % Products::kLanes == 0) s.after[Products::row(i)] += sum;
  }
#pragma unroll
  for (int j = 0; j < Products::kColumns; ++j) s.scores[Products::group()][Products::column(j)] = sums[j];
  __syncthreads();
  const int t = threadIdx.x;
  if (t < kTokens) {
    float sum = 0;
#pragma unroll 8
    for (int i = 0; i < Products::kGroups; ++i) sum += s.scores[i][t];
    s.columns[t] = sum;
  }
  __syncthreads();
  if (t < kTokens) {
    float sum = 0;
#pragma unroll 8
    for (int j = 0; j < kTokens; ++j) {
      if (j == t) parts.columns(pair)[t] = sum;
      sum += s.columns[j];
    }
    if (t == 0) parts.all(pair) = sum;
  }
  __syncthreads();
}

// What crosses the run's edges: E(0, i) a_i, on top of what s.after holds, E(j+1, n-1) b_j, <S_0, dS_E>.
template <class Products>
__device__ void find_edges(Shared<Products> &s, const DecayGradient &p, const Run &run, int head,
                           const Parts &parts, int tile) {
  const TileRange range = tile_range(run, head, tile);
  const int64_t state = (run.state * p.heads + head) * p.k.dim * p.v.dim;
  float a[Products::kRows] = {}, b[Products::kRows] = {}, through = 0;
  for (int v = 0; v < p.v.dim; v += kTokens) {
    typename Products::Product queries = {}, keys = {};
    through += Products::states(queries, keys, s.tiles, p, range, state, v);
    Products::add_rows(a, queries, p.d_o, p, range, v);
    Products::add_rows(b, keys, p.v, p, range, v);
  }
  const bool first_lane = threadIdx.x % Products::kLanes == 0;
  const double last = s.log[kDecayProductRun - 1];
  float after = 0, before = 0;
#pragma unroll
  for (int i = 0; i < Products::kRows; ++i) {
    const double log = s.log[tile * kTokens + Products::row(i)];
    const float of_query = p.scale * power_of_two(log) * sum_lanes(a[i], Products::kLanes),
                of_key = power_of_two(last - log) * sum_lanes(b[i], Products::kLanes);
    after += of_query, before += of_key;
    if (first_lane) s.after[Products::row(i)] += of_query, s.before[Products::row(i)] = of_key;
  }
  static_assert(2 * Products::kGroups <= kTokens);
  float *const afters = s.columns, *const befores = s.columns + Products::kGroups;
  if (first_lane) afters[Products::group()] = after, befores[Products::group()] = before;
  through = sum_lanes(through, 32);
  if (threadIdx.x % 32 == 0) s.through[threadIdx.x / 32] = through;
  __syncthreads();
  if (threadIdx.x != 0) return;
  float all_after = 0, all_before = 0, all_through = 0;
  for (int i = 0; i < Products::kGroups; ++i) all_after += afters[i], all_before += befores[i];
  for (const float part : s.through) all_through += part;
  parts.after(tile) = all_after, parts.before(tile) = all_before;
  if (tile == 0) parts.through() = power_of_two(last) * all_through;
}

template <class Products>
__global__ void __launch_bounds__(kThreads, 3) decay_products_kernel(int64_t first, DecayGradient p) {
  __shared__ __align__(128) unsigned char memory[sizeof(Shared<Products>)];
  Shared<Products> &s = *reinterpret_cast<Shared<Products> *>(memory);
  const int64_t item = first + blockIdx.x;
  Parts parts(nullptr, p.run_tokens);
  const int tile = static_cast<int>(item % parts.tiles), head = static_cast<int>(item / parts.tiles % p.heads);
  parts.base = p.workspace + item / parts.tiles * parts.floats();
  const Run &run = p.runs[item / parts.tiles / p.heads];
  if (run.length <= tile * kTokens) return;
  if (threadIdx.x < kTokens) s.after[threadIdx.x] = 0;
  sum_logs(s, p, run, head);
  float sum = 0;  // of token threadIdx.x
  for (int earlier = 0; earlier <= tile; ++earlier) {
    typename Products::Product scores = {};
    find_scores<Products>(scores, s, p, run, head, tile, earlier);
    if (earlier < tile) {
      earlier_scores<Products>(s, scores, parts, Parts::pair(tile, earlier));
    } else {
      sum = own_scores<Products>(s, scores);
    }
  }
  find_edges<Products>(s, p, run, head, parts, tile);
  const int t = threadIdx.x;
  if (t >= min(kTokens, run.length - tile * kTokens)) return;
#pragma unroll 8
  for (int i = 0; i < kTokens; ++i) sum += i >= t ? s.after[i] : s.before[i];
  parts.own(tile)[t] = sum;
}

template <class Products>
int launch(const DecayGradient &p, Stream stream) {
  return launch_blocks(decay_products_kernel<Products>, p.num_runs * p.heads * Parts(nullptr, p.run_tokens).tiles,
                       kThreads, 0, stream, p);
}

}  // namespace lasp::gpu::products
