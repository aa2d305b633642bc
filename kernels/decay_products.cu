// The gradient of a log decay that is one number a token (per head, or per token and head), for runs of at most 256
// tokens, in IEEE float32: the formula of generic_decay.cu with its sums over channels as products of matrices. With
// S_0 the state before the run's n tokens, dS_E the gradient of the state after them and E(j, i) = exp(g_j + .. + g_i):
//
//   d_g[t] = sum_{i >= t} E(0, i) a_i  +  E(0, n-1) <S_0, dS_E>  +  sum_{j < t} E(j+1, n-1) b_j  +  sum_{i >= t > j} M_ij
//   a_i = scale q_i . S_0 do_i      b_j = k_j . dS_E v_j      M_ij = scale E(j+1, i) (q_i . k_j) (do_i . v_j)
//
// All are sums of products of decays, never differences of sums, so that strong decay is right too.
//
// A block owns (run, head, 64 of the tokens): their scores with each 64 tokens before them and with themselves, then
// their Q S_0 and K dS_E, 64 columns of V at a time, each row of them multiplied by do and v where it lies. A thread
// owns 8 rows by 4 columns of each product. What a tile's sums add to the tokens of others goes through `parts`: with
// I the later tile, J the earlier,
//
//   t in J: sum over I of all i and of j < t     t between: all of M     t in I: sum over all j of i >= t
#include "decay_products.h"

#include "device.cuh"

namespace lasp::gpu {
namespace {

constexpr int kThreads = 128, kTokens = 64, kDepth = 16, kOwnRows = 8, kOwnColumns = 4;
constexpr int kAcross = kTokens / kOwnColumns;  // threads side by side
static_assert(kThreads == kAcross * (kTokens / kOwnRows) && kAcross == 16);

using Tile = float[kDepth][kTokens + 4];  // the dimension that is summed over, then tokens or columns
using Product = float[kOwnRows][kOwnColumns];

struct Shared {
  Tile left[2], right[2];
  float scores[kTokens][kTokens + 1];
  double log[kDecayProductRun];  // of base 2, summed up to and with each token of the run
  float after[kTokens], before[kTokens], columns[kTokens];
  float sums[kThreads / 32][2];
};

// What one (run, head) leaves in `parts`.
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
  __device__ float &after(int tile) const { return scalars()[tile]; }           // sum of E(0, i) a_i
  __device__ float &before(int tile) const { return scalars()[tiles + tile]; }  // sum of E(j+1, n-1) b_j
  __device__ float &all(int pair) const { return scalars()[2 * tiles + pair]; }  // of M
  __device__ float &through() const { return scalars()[2 * tiles + pairs()]; }  // E(0, n-1) <S_0, dS_E>
};

// The tokens of a tile.
struct Place {
  int64_t row, begin;
  int count, head;
};
__device__ Place place_of(const Run &run, int head, int tile) {
  return {run.row, run.begin + tile * kTokens, min(kTokens, run.length - tile * kTokens), head};
}

// The log of base 2: a whole number where the decay is a power of two. None is below -1e4: what decays so is nothing.
__device__ double log2_decay(float g) {
  float r;
  const double log = is_power_of_two(g, &r) ? static_cast<double>(r) : 1.4426950408889634 * static_cast<double>(g);
  return log < -1e4 ? -1e4 : log;
}

// 2^x, as right for a large x as for a small one.
__device__ float power_of_two(double x) {
  const double whole = rint(x);
  return exp2f(static_cast<float>(x - whole)) * exp2f(static_cast<float>(whole));
}

// Of all tokens of the run, by the first warp.
__device__ void sum_logs(Shared &s, const DecayGradient &p, const Run &run, int head) {
  if (threadIdx.x >= 32) return;
  constexpr int kEach = kDecayProductRun / 32;
  const int lane = threadIdx.x;
  double log[kEach], sum = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int t = lane * kEach + i;
    if (t < run.length)
      sum += log2_decay(p.decay == Decay::kHead
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

// Elements [from, from + kDepth) of a tile's tokens; what does not exist is zero.
__device__ void load_tokens(Tile &to, const Tensor &x, const DecayGradient &p, const Place &place, int from) {
  const int d = threadIdx.x % kDepth, first = threadIdx.x / kDepth;
  const int64_t base = offset_of(x, place.row, place.begin, place.head, p.heads) + from + d;
  constexpr int kStep = kThreads / kDepth, kCount = kTokens / kStep;
  float value[kCount];
  const auto load = [&](const auto *data) {
    data += base + first * x.strides.token;
#pragma unroll
    for (int i = 0; i < kCount; ++i, data += kStep * x.strides.token)
      value[i] = from + d < x.dim && first + i * kStep < place.count ? as_float(*data) : 0.0f;
  };
  switch (p.dtype) {
    case DType::kBFloat16: load(static_cast<const __nv_bfloat16 *>(x.data)); break;
    case DType::kFloat16: load(static_cast<const __half *>(x.data)); break;
    default: load(static_cast<const float *>(x.data));
  }
#pragma unroll
  for (int i = 0; i < kCount; ++i) to[d][first + i * kStep] = value[i];
}

// Rows [row, row + kDepth), columns [column, column + 64) of both states; returns this thread's part of <S_0, dS_E>.
__device__ float load_states(Tile &state, Tile &d_state, const DecayGradient &p, int64_t at, int row, int column) {
  const int v = threadIdx.x % kTokens, first = threadIdx.x / kTokens;
  constexpr int kStep = kThreads / kTokens;
  float sum = 0;
#pragma unroll
  for (int k = first; k < kDepth; k += kStep) {
    const bool there = row + k < p.k.dim && column + v < p.v.dim;
    const int64_t from = at + int64_t{row + k} * p.v.dim + column + v;
    const float x = there ? p.state[from] : 0.0f, y = there ? p.d_state[from] : 0.0f;
    state[k][v] = x;
    d_state[k][v] = y;
    sum = fmaf(x, y, sum);
  }
  return sum;
}

template <int kCount>
__device__ void load_vector(float (&to)[kCount], const float *from) {
#pragma unroll
  for (int i = 0; i < kCount; i += 4) {
    const float4 x = *reinterpret_cast<const float4 *>(from + i);
    to[i] = x.x, to[i + 1] = x.y, to[i + 2] = x.z, to[i + 3] = x.w;
  }
}

// product += left^T right, of this thread's rows and columns.
__device__ void multiply(Product &product, const Tile &left, const Tile &right, int row, int column) {
#pragma unroll 4
  for (int d = 0; d < kDepth; ++d) {
    float x[kOwnRows], y[kOwnColumns];
    load_vector(x, left[d] + row);
    load_vector(y, right[d] + column);
#pragma unroll
    for (int i = 0; i < kOwnRows; ++i)
#pragma unroll
      for (int j = 0; j < kOwnColumns; ++j) product[i][j] = fmaf(x[i], y[j], product[i][j]);
  }
}

__device__ void multiply_tokens(Product &product, Shared &s, const Tensor &x, const Place &x_place, const Tensor &y,
                                const Place &y_place, const DecayGradient &p, int row, int column) {
  for (int from = 0; from < x.dim; from += kDepth) {
    load_tokens(s.left[0], x, p, x_place, from);
    load_tokens(s.right[0], y, p, y_place, from);
    __syncthreads();
    multiply(product, s.left[0], s.right[0], row, column);
    __syncthreads();
  }
}

// This thread's rows of `product` times the elements of x where they lie: sums[i] += product[i] . x[token, columns].
__device__ void add_rows(float (&sums)[kOwnRows], const Product &product, const Tensor &x, const DecayGradient &p,
                         const Place &place, int row, int column) {
  const int64_t base = offset_of(x, place.row, place.begin, place.head, p.heads) + column;
#pragma unroll
  for (int i = 0; i < kOwnRows; ++i)
#pragma unroll
    for (int j = 0; j < kOwnColumns; ++j)
      if (row + i < place.count && column + j < x.dim)
        sums[i] = fmaf(product[i][j], load_element(x.data, p.dtype, base + (row + i) * x.strides.token + j), sums[i]);
}

__device__ float sum_lanes(float x, int lanes) {
  for (int step = lanes / 2; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
  return x;
}

// M between a tile and one before it or itself, where there is none of later tokens.
__device__ void find_scores(Product &scores, Shared &s, const DecayGradient &p, const Run &run, int head, int tile,
                            int earlier_tile, int row, int column) {
  const Place later = place_of(run, head, tile), earlier = place_of(run, head, earlier_tile);
  Product values = {};
  multiply_tokens(scores, s, p.q, later, p.k, earlier, p, row, column);
  multiply_tokens(values, s, p.d_o, later, p.v, earlier, p, row, column);
#pragma unroll
  for (int i = 0; i < kOwnRows; ++i)
#pragma unroll
    for (int j = 0; j < kOwnColumns; ++j) {
      const int to = tile * kTokens + row + i, from = earlier_tile * kTokens + column + j;
      const auto decay = [&] { return power_of_two(s.log[to] - s.log[from]); };
      scores[i][j] = to > from ? p.scale * decay() * scores[i][j] * values[i][j] : 0.0f;
    }
}

// Of a tile with itself: for each t and j the sum over i >= t.
__device__ void own_scores(Shared &s, const Product &scores, int row, int column) {
#pragma unroll
  for (int i = 0; i < kOwnRows; ++i)
#pragma unroll
    for (int j = 0; j < kOwnColumns; ++j) s.scores[row + i][column + j] = scores[i][j];
  __syncthreads();
  if (threadIdx.x >= kTokens) return;
  float sum = 0;
#pragma unroll 8
  for (int i = kTokens - 1; i >= 0; --i) {
    sum += s.scores[i][threadIdx.x];
    s.scores[i][threadIdx.x] = sum;
  }
}

// Of a tile with an earlier one: to s.after the sum over j; to the other tile's tokens the sum over all i and j < t.
__device__ void earlier_scores(Shared &s, const Product &scores, const Parts &parts, int pair, int row, int column) {
  float sums[kOwnColumns] = {};
#pragma unroll
  for (int i = 0; i < kOwnRows; ++i) {
    float sum = 0;
#pragma unroll
    for (int j = 0; j < kOwnColumns; ++j) {
      sum += scores[i][j];
      sums[j] += scores[i][j];
    }
    sum = sum_lanes(sum, kAcross);
    if (threadIdx.x % kAcross == 0) s.after[row + i] += sum;
  }
#pragma unroll
  for (int j = 0; j < kOwnColumns; ++j) s.scores[row / kOwnRows][column + j] = sums[j];
  __syncthreads();
  const int t = threadIdx.x;
  if (t < kTokens) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kTokens / kOwnRows; ++i) sum += s.scores[i][t];
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
__device__ float find_edges(Shared &s, const DecayGradient &p, const Place &place, const Parts &parts, int tile,
                            int64_t state, int row, int column) {
  float a[kOwnRows] = {}, b[kOwnRows] = {}, through = 0;
  for (int v = 0; v < p.v.dim; v += kTokens) {
    Product queries = {}, keys = {};
    for (int k = 0; k < p.k.dim; k += kDepth) {
      load_tokens(s.left[0], p.q, p, place, k);
      load_tokens(s.left[1], p.k, p, place, k);
      through += load_states(s.right[0], s.right[1], p, state, k, v);
      __syncthreads();
      multiply(queries, s.left[0], s.right[0], row, column);
      multiply(keys, s.left[1], s.right[1], row, column);
      __syncthreads();
    }
    add_rows(a, queries, p.d_o, p, place, row, v + column);
    add_rows(b, keys, p.v, p, place, row, v + column);
  }
  float after = 0, before = 0;
#pragma unroll
  for (int i = 0; i < kOwnRows; ++i) {
    const double log = s.log[tile * kTokens + row + i];
    const float of_query = p.scale * power_of_two(log) * sum_lanes(a[i], kAcross),
                of_key = power_of_two(s.log[kDecayProductRun - 1] - log) * sum_lanes(b[i], kAcross);
    after += of_query, before += of_key;
    if (threadIdx.x % kAcross != 0) continue;
    s.after[row + i] += of_query;
    s.before[row + i] = of_key;
  }
  // All lanes of a row group have the same.
  if (threadIdx.x % kAcross == 0) s.columns[threadIdx.x / kAcross] = after, s.columns[8 + threadIdx.x / kAcross] = before;
  __syncthreads();
  if (threadIdx.x == 0) {
    float all_after = 0, all_before = 0;
    for (int i = 0; i < kTokens / kOwnRows; ++i) all_after += s.columns[i], all_before += s.columns[8 + i];
    parts.after(tile) = all_after, parts.before(tile) = all_before;
  }
  return sum_lanes(through, 32);
}

__global__ void __launch_bounds__(kThreads, 4) decay_products_kernel(int64_t first, DecayGradient p) {
  __shared__ Shared s;
  const int64_t item = first + blockIdx.x;
  Parts parts(nullptr, p.run_tokens);
  const int tile = static_cast<int>(item % parts.tiles), head = static_cast<int>(item / parts.tiles % p.heads);
  parts.base = p.parts + item / parts.tiles * parts.floats();
  const Run &run = p.runs[item / parts.tiles / p.heads];
  const Place place = place_of(run, head, tile);
  if (place.count <= 0) return;
  const int row = threadIdx.x / kAcross * kOwnRows, column = threadIdx.x % kAcross * kOwnColumns;
  sum_logs(s, p, run, head);
  if (threadIdx.x < kTokens) s.after[threadIdx.x] = 0;
  for (int earlier = 0; earlier <= tile; ++earlier) {
    Product scores = {};
    find_scores(scores, s, p, run, head, tile, earlier, row, column);
    if (earlier == tile) {
      own_scores(s, scores, row, column);
    } else {
      earlier_scores(s, scores, parts, Parts::pair(tile, earlier), row, column);
    }
  }
  const float through = find_edges(s, p, place, parts, tile, (run.state * p.heads + head) * p.k.dim * p.v.dim, row,
                                   column);
  if (threadIdx.x % 32 == 0) s.sums[threadIdx.x / 32][0] = through;
  __syncthreads();
  const int t = threadIdx.x;
  if (tile == 0 && t == 0) {
    float sum = 0;
    for (const auto &part : s.sums) sum += part[0];
    parts.through() = power_of_two(s.log[kDecayProductRun - 1]) * sum;
  }
  if (t >= place.count) return;
  float sum = 0, inside = 0;
#pragma unroll 8
  for (int i = 0; i < kTokens; ++i) {
    sum += i >= t ? s.after[i] : s.before[i];
    if (i < t) inside += s.scores[t][i];
  }
  parts.own(tile)[t] = sum + inside;
}

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
  const int64_t blocks = p.num_runs * p.heads;
  const int error =
      launch_blocks(decay_products_kernel, blocks * Parts(nullptr, p.run_tokens).tiles, kThreads, 0, stream, p);
  if (error) return error;
  constexpr int kSumThreads = 256;
  return launch_blocks(decay_sums_kernel, ceil_div(blocks * p.run_tokens, kSumThreads), kSumThreads, 0, stream, p,
                       totals);
}

int load_decay_products() { return load_kernels(decay_products_kernel, decay_sums_kernel); }

}  // namespace lasp::gpu
