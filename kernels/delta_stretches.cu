// All gradients of a stretch of at most 64 tokens under the delta rule, for any shape and type, in IEEE float32,
// from the state S before it, the gradient dS of the state after it, and what the two walks left of each token, e
// and z. With u = beta e, dv = beta z, G the running sum of the log decay in the stretch and D_ij = exp(G_i - G_j):
//
//   P_ij = scale (do_i . u_j) D_ij, j <= i     R_ij = -(dv_i . u_j) D_ij, j < i
//   X_i = scale exp(G_i) S do_i     Y_i = -exp(G_i) S dv_i     W_j = exp(G_end - G_j) dS u_j
//   dq_i = X_i + sum_j P_ij k_j     dk_i = Y_i + sum_j R_ij k_j + W_i + sum_j (P_ji q_j + R_ji k_j)
//   dg_t = exp(G_end) <S, dS> + sum over i >= t of (q_i X_i + k_i Y_i) + sum over j < t of k_j W_j
//          + sum over i >= t > j of (P_ij q_i + R_ij k_i) k_j          by channel, else summed over them
//
// Each pair of tokens counts in dg as it is: nothing is the difference of sums, which a strong decay would be lost
// in. G is kept in float64, so that a difference of two has only the roundings of float32.
//
// A block owns (stretch, head). It finds P and R first, without D where decay is per channel. Then 32 channels at a
// time: X, Y and W as products over V, and the sums over pairs, where the 8 lanes of a channel have every eighth of
// the tokens j that are written. Between the parts, and before and after each tile of V, __syncthreads.
#include "delta_general.h"
#include "device.cuh"
#include "head_sum.cuh"

namespace lasp::gpu::delta {
namespace {

constexpr int kTokens = delta_checkpoint_tokens(KernelSet::kGeneric), kChannels = 32, kDepth = 16, kThreads = 256;
constexpr int kLanes = kThreads / kChannels, kOwn = kTokens / kLanes;  // of a channel; tokens of a lane
constexpr unsigned kAllLanes = 0xffffffffu;

struct Tiles {
  float d_o[kTokens][kDepth + 1], d_v[kTokens][kDepth + 1], u[kTokens][kDepth + 1];
  float state[kChannels][kDepth + 1], d_state[kChannels][kDepth + 1];
};
using Tokens = float[kTokens][kChannels + 1];
struct Shared {
  float pairs[kTokens][kTokens + 1], key_pairs[kTokens][kTokens + 1];  // P and R
  union {
    Tiles tiles;
    struct {
      Tokens x, y, w;
    };
  };
  Tokens q, k;
  float beta[kTokens], d_g[kTokens], squares[kChannels];  // `squares`: <S, dS> of a channel
  double g[1];                                            // [kTokens], or [kTokens][kChannels]
};
constexpr int bytes_of(bool channel) {
  return static_cast<int>(sizeof(Shared) + sizeof(double) * kTokens * (channel ? kChannels : 1));
}

// A log decay to be summed: of a power of two the exact one, and finite.
__device__ double exact_log(float g) { return g < -1e5f ? -1e5 : log_decay_power(g, 1); }
__device__ float decay_between(double later, double earlier) {
  return decay_of(static_cast<float>(later - earlier));
}

// What a block works on.
struct Work {
  int64_t row, begin, state;  // `state`: of its first element in the checkpoints
  int length, head;
};

__device__ int64_t offset_at(const Tensor &x, const Work &w, const Stretches &p, int t) {
  return offset_of(x, w.row, w.begin + t, w.head, p.heads);
}

// Columns [from, from + 16) of do, dv and u. visit(t, column, e, z) for each that exists.
template <class Visit>
__device__ void load_columns(Shared &s, const Stretches &p, const Work &w, int from, Visit visit) {
  const int v = from + threadIdx.x % kDepth;
#pragma unroll
  for (int n = 0; n < kTokens * kDepth / kThreads; ++n) {
    const int t = threadIdx.x / kDepth + n * (kThreads / kDepth);
    const bool there = t < w.length && v < p.v.dim;
    const int64_t at = (((w.row * p.tokens + w.begin + t) * p.heads) + w.head) * p.v.dim + v;
    const float e = there ? p.errors[at] : 0.0f, z = there ? p.d_written[at] : 0.0f;
    s.tiles.d_o[t][threadIdx.x % kDepth] =
        there ? load_element(p.d_o.data, p.dtype, offset_at(p.d_o, w, p, t) + v) : 0.0f;
    s.tiles.d_v[t][threadIdx.x % kDepth] = s.beta[t] * z;
    s.tiles.u[t][threadIdx.x % kDepth] = s.beta[t] * e;
    visit(n, t, v, there, e, z);
  }
}

// kAdds: what `adds` names joins what is there.
template <bool kAdds>
__device__ void put(void *data, DType type, int64_t at, float value, bool adds) {
  if constexpr (kAdds) {
    put_element(data, type, at, value, adds);
  } else {
    store_element(data, type, at, value);
  }
}

__device__ float sum_of_sixteen(float x) {
#pragma unroll
  for (int step = 8; step > 0; step /= 2) x += __shfl_xor_sync(kAllLanes, x, step);
  return x;
}

// P and R, and the gradients of v and beta on the way.
template <bool kAdds>
__device__ void find_pairs(Shared &s, const Stretches &p, const Work &w) {
  constexpr int kStep = kThreads / kDepth, kEach = kTokens / kStep;
  const int row = threadIdx.x / kStep, column = threadIdx.x % kStep;
  float pairs[kEach][kEach] = {}, key_pairs[kEach][kEach] = {}, d_beta[kEach] = {};
  for (int from = 0; from < p.v.dim; from += kDepth) {
    __syncthreads();
    load_columns(s, p, w, from, [&](int n, int t, int v, bool there, float e, float z) {
      d_beta[n] = fmaf(e, z, d_beta[n]);
      if (there)
        put<kAdds>(p.d_v.data, p.staged[2] ? DType::kFloat32 : p.dtype, offset_at(p.d_v, w, p, t) + v,
                   s.tiles.d_v[t][v - from], p.adds[2]);
    });
    __syncthreads();
#pragma unroll 4
    for (int v = 0; v < kDepth; ++v)
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const float d_o = s.tiles.d_o[row + i * kStep][v], d_v = s.tiles.d_v[row + i * kStep][v];
#pragma unroll
        for (int j = 0; j < kEach; ++j) {
          const float u = s.tiles.u[column + j * kStep][v];
          pairs[i][j] = fmaf(d_o, u, pairs[i][j]);
          key_pairs[i][j] = fmaf(d_v, u, key_pairs[i][j]);
        }
      }
  }
#pragma unroll
  for (int n = 0; n < kEach; ++n) {
    const int t = row + n * kStep;
    const float sum = sum_of_sixteen(d_beta[n]);
    if (column == 0 && t < w.length)
      put<kAdds>(p.d_beta, p.d_beta_dtype, offset_of(p.d_beta_strides, w.row, w.begin + t, w.head), sum,
                 p.d_beta_adds);
  }
#pragma unroll
  for (int i = 0; i < kEach; ++i)
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const int later = row + i * kStep, earlier = column + j * kStep;
      float decay = later >= earlier ? 1.0f : 0.0f;
      if (p.decay != Decay::kChannel && later > earlier) decay = decay_between(s.g[later], s.g[earlier]);
      s.pairs[later][earlier] = later >= earlier ? p.scale * pairs[i][j] * decay : 0.0f;
      s.key_pairs[later][earlier] = later > earlier ? -key_pairs[i][j] * decay : 0.0f;
    }
}

// s.x = scale S do, s.y = -S dv, s.w = dS u of channels [first, first + 32), without decay, and s.squares.
__device__ void find_products(Shared &s, const Stretches &p, const Work &w, int first) {
  constexpr int kStep = kThreads / kDepth, kEach = kTokens / kStep, kAcross = kChannels / kStep;
  const int row = threadIdx.x / kStep, column = threadIdx.x % kStep;
  const auto *const states = static_cast<const float *>(p.checkpoints) + w.state, *const d_states =
                                                                                      static_cast<const float *>(
                                                                                          p.d_checkpoints) +
                                                                                      w.state;
  float x[kEach][kAcross] = {}, y[kEach][kAcross] = {}, z[kEach][kAcross] = {}, squares[kAcross] = {};
  for (int from = 0; from < p.v.dim; from += kDepth) {
    __syncthreads();
    load_columns(s, p, w, from, [](int, int, int, bool, float, float) {});
#pragma unroll
    for (int n = 0; n < kAcross; ++n) {
      const int channel = row + n * kStep, d = first + channel, v = from + column;
      const bool there = d < p.k.dim && v < p.v.dim;
      const int64_t at = int64_t{d} * p.v.dim + v;
      const float state = there ? states[at] : 0.0f, d_state = there ? d_states[at] : 0.0f;
      s.tiles.state[channel][column] = state;
      s.tiles.d_state[channel][column] = d_state;
      squares[n] = fmaf(state, d_state, squares[n]);
    }
    __syncthreads();
#pragma unroll 4
    for (int v = 0; v < kDepth; ++v)
#pragma unroll
      for (int j = 0; j < kAcross; ++j) {
        const float state = s.tiles.state[column + j * kStep][v], d_state = s.tiles.d_state[column + j * kStep][v];
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
          const int t = row + i * kStep;
          x[i][j] = fmaf(s.tiles.d_o[t][v], state, x[i][j]);
          y[i][j] = fmaf(s.tiles.d_v[t][v], state, y[i][j]);
          z[i][j] = fmaf(s.tiles.u[t][v], d_state, z[i][j]);
        }
      }
  }
  __syncthreads();  // the tiles give way
#pragma unroll
  for (int j = 0; j < kAcross; ++j) {
    const int channel = column + j * kStep;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int t = row + i * kStep;
      s.x[t][channel] = p.scale * x[i][j];
      s.y[t][channel] = -y[i][j];
      s.w[t][channel] = z[i][j];
    }
    const float sum = sum_of_sixteen(squares[j]);
    if (column == 0) s.squares[row + j * kStep] = sum;
  }
}

// Channels [first, first + 32) of q and k, and of G where decay is per channel: lane by lane eight tokens, then a
// scan over the lanes of a channel.
__device__ void load_channels(Shared &s, const Stretches &p, const Work &w, int first) {
  for (int at = threadIdx.x; at < kTokens * kChannels; at += kThreads) {
    const int t = at / kChannels, channel = at % kChannels, d = first + channel;
    const bool there = t < w.length && d < p.k.dim;
    s.q[t][channel] = there ? load_element(p.q.data, p.dtype, offset_at(p.q, w, p, t) + d) : 0.0f;
    s.k[t][channel] = there ? load_element(p.k.data, p.dtype, offset_at(p.k, w, p, t) + d) : 0.0f;
  }
  if (p.decay != Decay::kChannel) return;
  const int channel = threadIdx.x / kLanes, lane = threadIdx.x % kLanes, d = first + channel;
  double sums[kOwn], sum = 0;
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    const int t = lane * kOwn + i;
    const bool there = t < w.length && d < p.k.dim;
    const int64_t at = offset_of(p.g_strides, w.row, w.begin + t, w.head) + d;
    sums[i] = sum += there ? exact_log(load_element(p.g, p.decay_dtype, at)) : 0.0;
  }
  double before = 0;
  for (int other = 0; other < kLanes - 1; ++other) {
    const double of_other = __shfl_sync(kAllLanes, sum, other, kLanes);
    if (other < lane) before += of_other;
  }
#pragma unroll
  for (int i = 0; i < kOwn; ++i) s.g[(lane * kOwn + i) * kChannels + channel] = before + sums[i];
}

// From here to there: s.q to dq, s.k to dk, s.y to dg, of these channels.
template <bool kChannel>
__device__ void sum_pairs(Shared &s, const Work &w) {
  const int channel = threadIdx.x / kLanes, lane = threadIdx.x % kLanes;
  const auto g = [&](int t) { return s.g[kChannel ? t * kChannels + channel : t]; };
  const double end = g(kTokens - 1);
  float key[kOwn], written[kOwn] = {}, crossing[kOwn];  // of token j: what crosses from it to tokens i >= t
  double before[kChannel ? kOwn : 1];
#pragma unroll
  for (int m = 0; m < kOwn; ++m) {
    const int j = lane + m * kLanes;
    key[m] = s.k[j][channel];
    if constexpr (kChannel) before[m] = g(j);
    s.w[j][channel] *= decay_between(end, g(j));
    crossing[m] = key[m] * s.w[j][channel];
  }
  float entering = decay_between(end, 0) * s.squares[channel];
  __syncwarp();
#pragma unroll 1
  for (int i = w.length - 1; i >= 0; --i) {
    const float q = s.q[i][channel], k = s.k[i][channel];
    const double now = g(i);
    float d_q = 0, d_k = 0, d_g = 0;
#pragma unroll
    for (int m = 0; m < kOwn; ++m) {
      const int j = lane + m * kLanes;
      if (m * kLanes > i) continue;
      float pair = s.pairs[i][j], key_pair = s.key_pairs[i][j];
      if constexpr (kChannel) {
        const float decay = j < i ? decay_between(now, before[m]) : 1.0f;
        pair *= decay;
        key_pair *= decay;
      }
      d_q = fmaf(pair, key[m], d_q);
      d_k = fmaf(key_pair, key[m], d_k);
      const float both = fmaf(pair, q, key_pair * k);
      written[m] += both;
      if (j >= i) continue;
      crossing[m] = fmaf(both, key[m], crossing[m]);
      d_g += crossing[m];
    }
#pragma unroll
    for (int step = kLanes / 2; step > 0; step /= 2) {
      d_q += __shfl_xor_sync(kAllLanes, d_q, step);
      d_k += __shfl_xor_sync(kAllLanes, d_k, step);
      d_g += __shfl_xor_sync(kAllLanes, d_g, step);
    }
    const float decay = decay_between(now, 0), x = decay * s.x[i][channel], y = decay * s.y[i][channel];
    entering += fmaf(q, x, k * y);
    __syncwarp();  // the channel's lanes have read what is written now
    if (lane == 0) s.q[i][channel] = x + d_q;
    if (lane == 1) s.x[i][channel] = y + d_k;
    if (lane == 2) s.y[i][channel] = entering + d_g;
  }
  __syncwarp();
#pragma unroll
  for (int m = 0; m < kOwn; ++m) {
    const int j = lane + m * kLanes;
    if (j < w.length) s.k[j][channel] = s.x[j][channel] + written[m] + s.w[j][channel];
  }
}

// Out of shared memory, of channels [first, first + 32).
template <bool kAdds>
__device__ void store_channels(Shared &s, const Stretches &p, const Work &w, int first) {
  for (int at = threadIdx.x; at < w.length * kChannels; at += kThreads) {
    const int t = at / kChannels, channel = at % kChannels, d = first + channel;
    if (d >= p.k.dim) continue;
    const auto type = [&](int which) { return p.staged[which] ? DType::kFloat32 : p.dtype; };
    put<kAdds>(p.d_q.data, type(0), offset_at(p.d_q, w, p, t) + d, s.q[t][channel], p.adds[0]);
    put<kAdds>(p.d_k.data, type(1), offset_at(p.d_k, w, p, t) + d, s.k[t][channel], p.adds[1]);
    if (p.d_g != nullptr && p.decay == Decay::kChannel)
      put<kAdds>(p.d_g, p.d_g_dtype, offset_of(p.d_g_strides, w.row, w.begin + t, w.head) + d, s.y[t][channel],
                 p.d_g_adds);
  }
  const int t = threadIdx.x;
  if (p.decay == Decay::kChannel || t >= w.length) return;
  float sum = 0;
  for (int channel = 0; channel < kChannels; ++channel) sum += s.y[t][channel];
  s.d_g[t] += sum;
}

// Beta and, of one decay a token, G.
__device__ void load_tokens(Shared &s, const Stretches &p, const Work &w) {
  const int t = threadIdx.x;
  if (t < kTokens) {
    const bool there = t < w.length;
    const auto at = [&](const Strides &strides) { return offset_of(strides, w.row, w.begin + t, w.head); };
    s.beta[t] = there ? load_element(p.beta, p.beta_dtype, at(p.beta_strides)) : 0.0f;
    s.d_g[t] = 0;
    if (p.decay == Decay::kHead)
      s.g[t] = exact_log(static_cast<const float *>(p.g)[w.head]) * min(t + 1, w.length);
    else if (p.decay != Decay::kChannel)
      s.g[t] =
          there && p.decay == Decay::kScalar ? exact_log(load_element(p.g, p.decay_dtype, at(p.g_strides))) : 0.0;
  }
  __syncthreads();
  if (t == 0 && p.decay == Decay::kScalar)
    for (int i = 1; i < kTokens; ++i) s.g[i] += s.g[i - 1];
}

template <bool kChannel, bool kAdds>
__global__ void __launch_bounds__(kThreads) stretches_kernel(int64_t first, Stretches p) {
  extern __shared__ double memory[];
  Shared &s = *reinterpret_cast<Shared *>(memory);
  const int64_t item = first + blockIdx.x;
  const Run &run = p.runs[item / p.heads];
  const bool dependent = run.entered != 0;
  if (run.length == 0 || (p.filter != RunFilter::kAll && dependent != (p.filter == RunFilter::kDependent))) return;
  const int head = static_cast<int>(item % p.heads);
  const Work w = {run.row, run.begin, (run.state * p.heads + head) * p.k.dim * p.v.dim, run.length, head};
  load_tokens(s, p, w);
  __syncthreads();
  find_pairs<kAdds>(s, p, w);
  for (int channels = 0; channels < p.k.dim; channels += kChannels) {
    load_channels(s, p, w, channels);
    find_products(s, p, w, channels);
    __syncthreads();
    sum_pairs<kChannel>(s, w);
    __syncthreads();
    store_channels<kAdds>(s, p, w, channels);
    __syncthreads();
  }
  const int t = threadIdx.x;
  if (p.d_g == nullptr || t >= w.length || kChannel || p.decay == Decay::kNone) return;
  if (p.decay == Decay::kHead) {
    p.token_d_g[(w.row * p.heads + head) * p.tokens + w.begin + t] = s.d_g[t];
  } else {
    put<kAdds>(p.d_g, p.d_g_dtype, offset_of(p.d_g_strides, w.row, w.begin + t, head), s.d_g[t], p.d_g_adds);
  }
}

}  // namespace

int launch_stretches(const Stretches &pass, Stream stream) {
  Stretches p = pass;
  p.d_g_dtype = p.d_g_float32 ? DType::kFloat32 : p.decay_dtype;
  const bool channel = p.decay == Decay::kChannel;
  const bool adds = p.adds[0] || p.adds[1] || p.adds[2] || p.d_beta_adds || p.d_g_adds;
  const auto kernel = channel ? (adds ? stretches_kernel<true, true> : stretches_kernel<true, false>)
                              : (adds ? stretches_kernel<false, true> : stretches_kernel<false, false>);
  if (const int error = launch_blocks(kernel, p.num_runs * p.heads, kThreads, bytes_of(channel), stream, p))
    return error;
  if (p.decay != Decay::kHead || p.d_g == nullptr || !p.last) return cudaSuccess;
  sum_tokens_of_head<<<dim3(unsigned(p.heads)), dim3(kHeadSumThreads), 0, stream>>>(
      p.token_d_g, p.batch, p.heads, p.tokens, p.d_g_adds, static_cast<float *>(p.d_g));
  return cudaGetLastError();
}

int load_stretches() {
  for (const auto kernel : {stretches_kernel<false, false>, stretches_kernel<false, true>})
    if (const int error = load_kernel(kernel, bytes_of(false))) return error;
  for (const auto kernel : {stretches_kernel<true, false>, stretches_kernel<true, true>})
    if (const int error = load_kernel(kernel, bytes_of(true))) return error;
  return load_kernels(sum_tokens_of_head);
}

}  // namespace lasp::gpu::delta
