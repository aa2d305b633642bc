// The gradient of the log decay without cancellation, where decay_products.cuh does not serve: per channel, and
// over longer runs. In a block of n tokens, with S_0 the state before it, dS_E
// the gradient of the state after it and e_t = exp(g_t), every path from an earlier token to a later one that
// crosses t is counted once:
//
//   d_g[t, d] = sum_{i >= t} (e_0..e_i) q_i (S_0 do_i)_d  +  sum_{j < t} (e_{j+1}..e_{n-1}) k_j (dS_E v_j)_d
//             + (e_0..e_{n-1}) <S_0, dS_E>_d              +  sum_{i >= t > j} (e_{j+1}..e_i) q_i k_j (do_i . v_j)
//
// All are sums of products of decays, never differences of sums, so that strong decay, whose gradient is tiny
// beside q dq, is right too. (docs/numerics.md has the CPU's form of the same.)
//
// A block of threads owns (run, head, 32 rows of the state). Lane = row d, warp = 32 columns of V: S and dS are 32
// registers each. It walks the run's blocks from the last to the first; S_0 of each is found again from the state
// that enters the run.
#include "decay_products.h"
#include "device.cuh"

namespace lasp::gpu {
namespace {

constexpr int kBlock = 16;
constexpr int kTile = 32;
constexpr int kNarrow = 256, kWide = 512;  // columns: narrow blocks have more registers for each thread

struct Shared {
  float *v, *d_o;           // [kBlock][columns]
  float *q, *k, *e, *code;  // [kBlock][kTile]; e: exp(g)
  float *from_s, *from_ds;  // [warps][kBlock][kTile]: parts of S_0 do_i and dS_E v_j
  float *through;           // [warps][kTile]: parts of <S_0, dS_E>
  float *dots;              // [kBlock][kBlock]: do_i . v_j
  __host__ __device__ static int64_t floats(int columns) {
    const int warps = columns / kTile;
    return 2 * kBlock * columns + 4 * kBlock * kTile + 2 * warps * kBlock * kTile + warps * kTile + kBlock * kBlock;
  }
  __device__ Shared(float *memory, int columns) {
    const int warps = columns / kTile;
    v = memory;
    d_o = v + kBlock * columns;
    q = d_o + kBlock * columns;
    k = q + kBlock * kTile;
    e = k + kBlock * kTile;
    code = e + kBlock * kTile;
    from_s = code + kBlock * kTile;
    from_ds = from_s + warps * kBlock * kTile;
    through = from_ds + warps * kBlock * kTile;
    dots = through + warps * kTile;
  }
};

__device__ void load_tile(float *to, int width, const void *data, DType type, int64_t token_stride, int64_t base,
                          int dim, int from, int count) {
  for (int i = threadIdx.x; i < kBlock * width; i += blockDim.x) {
    const int t = i / width, d = from + i % width;
    to[i] = t < count && d < dim ? load_element(data, type, base + t * token_stride + d) : 0.0f;
  }
}

// Tokens beyond the run's end stay at decay 1 and zero q, k, v, do: they add nothing.
__device__ void load_block(const Shared &s, const DecayGradient &p, const Run &run, int block, int head, int row,
                           bool all) {
  const int columns = blockDim.x;
  const int64_t begin = run.begin + block * kBlock;
  const int count = min(kBlock, run.length - block * kBlock);
  const auto tile = [&](float *to, int width, const Tensor &x, int from) {
    load_tile(to, width, x.data, p.dtype, x.strides.token, offset_of(x, run.row, begin, head, p.heads), x.dim, from,
              count);
  };
  tile(s.k, kTile, p.k, row);
  tile(s.v, columns, p.v, 0);
  if (all) {
    tile(s.q, kTile, p.q, row);
    tile(s.d_o, columns, p.d_o, 0);
  }
  const bool channel = p.decay == Decay::kChannel;
  const int64_t base = offset_of(p.g_strides, run.row, begin, head);
  for (int i = threadIdx.x; i < kBlock * kTile; i += blockDim.x) {
    const int t = i / kTile, d = row + i % kTile;
    float g = 0;
    if (t < count && d < p.k.dim)
      g = p.decay == Decay::kHead
              ? static_cast<const float *>(p.g)[head]
              : load_element(p.g, p.decay_dtype, base + t * p.g_strides.token + (channel ? d : 0));
    s.e[i] = decay_of(g);
    s.code[i] = decay_code(g);
  }
}

// S or dS takes in a token: x = e x + a b, or e (x + a b) when the token comes from the right.
template <bool kFromRight>
__device__ void take_token(float (&x)[kTile], float a, const float *b, float code) {
#pragma unroll
  for (int i = 0; i < kTile; i += 4) {
    const float4 b4 = *reinterpret_cast<const float4 *>(b + i);
    const float bv[4] = {b4.x, b4.y, b4.z, b4.w};
#pragma unroll
    for (int j = 0; j < 4; ++j)
      x[i + j] = kFromRight ? decayed(fmaf(a, bv[j], x[i + j]), code) : fmaf(a, bv[j], decayed(x[i + j], code));
  }
}

__device__ float dot(const float (&x)[kTile], const float *y) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kTile; i += 4) {
    const float4 y4 = *reinterpret_cast<const float4 *>(y + i);
    sum = fmaf(x[i], y4.x, fmaf(x[i + 1], y4.y, fmaf(x[i + 2], y4.z, fmaf(x[i + 3], y4.w, sum))));
  }
  return sum;
}

__device__ void load_state(float (&x)[kTile], const float *state, int64_t at, int live) {
#pragma unroll
  for (int i = 0; i < kTile; ++i) x[i] = i < live ? state[at + i] : 0.0f;
}

// Sums the warps' parts into those of warp 0, in order.
__device__ void add_parts(float *parts, int count, int warps) {
  for (int i = threadIdx.x; i < count; i += blockDim.x) {
    float sum = 0;
    for (int w = 0; w < warps; ++w) sum += parts[w * count + i];
    parts[i] = sum;
  }
}

// One row d of the formula above, by one lane.
__device__ void row_gradient(float (&out)[kBlock], const Shared &s, float scale) {
  const int lane = threadIdx.x % kTile;
  float e[kBlock], k[kBlock];
#pragma unroll
  for (int t = 0; t < kBlock; ++t) {
    e[t] = s.e[t * kTile + lane];
    k[t] = s.k[t * kTile + lane];
  }
  float product = 1;
  float suffix[kBlock];  // (e_0..e_i) q_i (S_0 do_i)
#pragma unroll
  for (int i = 0; i < kBlock; ++i) {
    product *= e[i];
    suffix[i] = product * scale * s.q[i * kTile + lane] * s.from_s[i * kTile + lane];
  }
  const float through = product * s.through[lane];
  float sum = 0;
#pragma unroll
  for (int t = kBlock - 1; t >= 0; --t) {
    sum += suffix[t];
    out[t] = sum + through;
  }
  float after = 1;  // (e_{j+1}..e_{n-1})
  float z[kBlock];  // sum_{i >= t} (e_{t+1}..e_i) q_i (do_i . v_j), for each j < t
#pragma unroll
  for (int j = kBlock - 1; j >= 0; --j) {
    suffix[j] = after * k[j] * s.from_ds[j * kTile + lane];
    after *= e[j];
    z[j] = 0;
  }
  sum = 0;
#pragma unroll
  for (int t = 1; t < kBlock; ++t) {
    sum += suffix[t - 1];
    out[t] += sum;
  }
#pragma unroll
  for (int t = kBlock - 1; t > 0; --t) {
    const float q = scale * s.q[t * kTile + lane];
    float weight = e[t], crossing = 0;
#pragma unroll
    for (int j = t - 1; j >= 0; --j) {
      z[j] = fmaf(q, s.dots[t * kBlock + j], t + 1 < kBlock ? e[t + 1] * z[j] : 0.0f);
      crossing = fmaf(weight * k[j], z[j], crossing);
      weight *= e[j];
    }
    out[t] += crossing;
  }
}

__device__ void store_rows(const DecayGradient &p, const Run &run, int64_t begin, int count, int head, int tile,
                           const float (&out)[kBlock]) {
  const int lane = threadIdx.x % kTile, d = tile * kTile + lane;
  if (p.decay == Decay::kChannel) {
    const int64_t base = offset_of(p.d_g_strides, run.row, begin, head) + d;
#pragma unroll
    for (int t = 0; t < kBlock; ++t)
      if (t < count && d < p.k.dim) store_element(p.d_g, p.decay_dtype, base + t * p.d_g_strides.token, out[t]);
    return;
  }
  float *parts = p.parts + ((tile * p.batch + run.row) * p.heads + head) * p.tokens + begin;
#pragma unroll
  for (int t = 0; t < kBlock; ++t) {
    float sum = out[t];
    for (int step = kTile / 2; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (lane == 0 && t < count) parts[t] = sum;
  }
}

template <int kMostThreads>
__global__ void __launch_bounds__(kMostThreads) decay_gradient_kernel(int64_t first, DecayGradient p) {
  extern __shared__ float4 memory[];
  const int columns = blockDim.x, warps = columns / kTile, lane = threadIdx.x % kTile, warp = threadIdx.x / kTile;
  const Shared s(reinterpret_cast<float *>(memory), columns);
  const int tiles = (p.k.dim + kTile - 1) / kTile;
  const int64_t item = first + blockIdx.x;
  const int tile = static_cast<int>(item % tiles), head = static_cast<int>(item / tiles % p.heads),
            row = tile * kTile;
  const int64_t run_index = item / tiles / p.heads;
  const Run run = p.runs[run_index];

  const int live = row + lane < p.k.dim ? min(kTile, p.v.dim - warp * kTile) : 0;
  const int64_t at = ((run.state * p.heads + head) * p.k.dim + row + lane) * p.v.dim + warp * kTile;
  float state[kTile], d_state[kTile];
  load_state(d_state, p.d_state, at, live);
  const int blocks = (run.length + kBlock - 1) / kBlock;
#pragma unroll 1
  for (int block = blocks - 1; block >= 0; --block) {
    load_state(state, p.state, at, live);
#pragma unroll 1
    for (int earlier = 0; earlier < block; ++earlier) {
      load_block(s, p, run, earlier, head, row, false);
      __syncthreads();
#pragma unroll 1
      for (int t = 0; t < kBlock; ++t)
        take_token<false>(state, s.k[t * kTile + lane], s.v + t * columns + warp * kTile, s.code[t * kTile + lane]);
      __syncthreads();
    }
    load_block(s, p, run, block, head, row, true);
    __syncthreads();
    float through = 0;
#pragma unroll
    for (int i = 0; i < kTile; ++i) through = fmaf(state[i], d_state[i], through);
    s.through[warp * kTile + lane] = through;
#pragma unroll 1
    for (int t = 0; t < kBlock; ++t) {
      s.from_s[(warp * kBlock + t) * kTile + lane] = dot(state, s.d_o + t * columns + warp * kTile);
      s.from_ds[(warp * kBlock + t) * kTile + lane] = dot(d_state, s.v + t * columns + warp * kTile);
    }
    for (int i = threadIdx.x; i < kBlock * kBlock; i += columns) {
      const float *x = s.d_o + i / kBlock * columns, *y = s.v + i % kBlock * columns;
      float sum = 0;
      if (i / kBlock > i % kBlock)
        for (int c = 0; c < columns; ++c) sum = fmaf(x[(c + i) % columns], y[(c + i) % columns], sum);
      s.dots[i] = sum;
    }
    __syncthreads();
    add_parts(s.from_s, kBlock * kTile, warps);
    add_parts(s.from_ds, kBlock * kTile, warps);
    add_parts(s.through, kTile, warps);
    __syncthreads();
    const int count = min(kBlock, run.length - block * kBlock);
    if (warp == 0) {
      float out[kBlock];
      row_gradient(out, s, p.scale);
      store_rows(p, run, run.begin + block * kBlock, count, head, tile, out);
    }
#pragma unroll 1
    for (int t = kBlock - 1; t >= 0; --t)
      take_token<true>(d_state, p.scale * s.q[t * kTile + lane], s.d_o + t * columns + warp * kTile,
                       s.code[t * kTile + lane]);
    __syncthreads();
  }
}

// parts [tiles, B, H, T] to d_g [B, T, H].
__global__ void scalar_gradient_kernel(int64_t first, DecayGradient p, int tiles) {
  const int64_t at = (first + blockIdx.x) * blockDim.x + threadIdx.x, count = p.batch * p.heads * p.tokens;
  if (at >= count) return;
  float sum = 0;
  for (int tile = 0; tile < tiles; ++tile) sum += p.parts[tile * count + at];
  const int64_t token = at % p.tokens, head = at / p.tokens % p.heads, row = at / p.tokens / p.heads;
  store_element(p.d_g, p.decay_dtype, offset_of(p.d_g_strides, row, token, head), sum);
}

// One block per head adds all its tokens in a fixed order, in float64: they are many and of either sign.
constexpr int kHeadThreads = 512;
__global__ void __launch_bounds__(kHeadThreads) head_gradient_kernel(int64_t first, DecayGradient p, int tiles) {
  __shared__ double sums[kHeadThreads];
  const int64_t head = first + blockIdx.x;
  double sum = 0;
  for (int64_t line = 0; line < tiles * p.batch; ++line) {
    const float *parts = p.parts + (line * p.heads + head) * p.tokens;
    for (int64_t t = threadIdx.x; t < p.tokens; t += kHeadThreads) sum += parts[t];
  }
  sums[threadIdx.x] = sum;
  for (int half = kHeadThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
  }
  if (threadIdx.x == 0) static_cast<float *>(p.d_g)[head] = static_cast<float>(sums[0]);
}

int64_t head_totals(const DecayGradient &p) { return p.decay == Decay::kHead ? p.batch * p.heads * p.tokens : 0; }
bool by_products(const DecayGradient &p) { return p.decay != Decay::kChannel && p.run_tokens <= kDecayProductRun; }
}  // namespace

int64_t decay_gradient_parts(const DecayGradient &p) {
  if (p.decay == Decay::kChannel || p.decay == Decay::kNone) return 0;
  if (by_products(p)) return decay_products_parts(p) + head_totals(p);
  return ceil_div(p.k.dim, kTile) * p.batch * p.heads * p.tokens;
}

int launch_decay_gradient(const DecayGradient &p, Stream stream) {
  if (by_products(p)) {
    if (p.decay != Decay::kHead) return launch_decay_products(p, nullptr, stream);
    DecayGradient totals = p;
    totals.parts = p.parts + decay_products_parts(p);
    if (const int error = launch_decay_products(p, totals.parts, stream)) return error;
    return launch_blocks(head_gradient_kernel, p.heads, kHeadThreads, 0, stream, totals, 1);
  }
  const int columns = static_cast<int>(ceil_div(p.v.dim, kTile)) * kTile;
  const int tiles = static_cast<int>(ceil_div(p.k.dim, kTile));
  const auto kernel = columns <= kNarrow ? decay_gradient_kernel<kNarrow> : decay_gradient_kernel<kWide>;
  const size_t shared = Shared::floats(columns) * sizeof(float);
  if (const int error = launch_blocks(kernel, p.num_runs * p.heads * tiles, columns, shared, stream, p))
    return error;
  if (p.decay == Decay::kScalar)
    return launch_blocks(scalar_gradient_kernel, ceil_div(p.batch * p.heads * p.tokens, 256), 256, 0, stream, p,
                         tiles);
  if (p.decay == Decay::kHead)
    return launch_blocks(head_gradient_kernel, p.heads, kHeadThreads, 0, stream, p, tiles);
  return cudaSuccess;
}

int load_decay_gradient() {
  for (const int columns : {kNarrow, kWide}) {
    const auto kernel = columns == kNarrow ? decay_gradient_kernel<kNarrow> : decay_gradient_kernel<kWide>;
    if (const int error = load_kernel(kernel, Shared::floats(columns) * sizeof(float))) return error;
  }
  const int error = load_decay_products();
  return error ? error : load_kernels(scalar_gradient_kernel, head_gradient_kernel);
}

}  // namespace lasp::gpu
