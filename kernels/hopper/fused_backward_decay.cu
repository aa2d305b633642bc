// The last kernels of the backward pass: the gradient of the log decay from the terms that the walk has left, and
// its sum over a head's tokens in a fixed order, or its layout.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include "../head_sum.cuh"
#include "fused_backward_internal.h"
#include "fused_backward_layout.cuh"

namespace lasp::gpu::hopper::fused {
namespace {

constexpr int kTokens = 32;  // of a tile: tokens by heads, turned over in shared memory
constexpr int kRows = 8;     // of a block's threads

// With X = Lambda <S_0, dS_E> and the sums A = q . dq, B (k . dk from the gradient after the chunk) and C (the rest
// of k . dk), A and C without a token's pair with itself: d_g[t] = X + sum_{i >= t} (A - C)_i + sum_{j < t} B_j.
// Pairs of tokens that are both at or after t cancel: they are the same rounded score times the same dot product.
// Summed over the tiles of the launch, and with what those before have left. A warp takes every kWarps-th chunk of
// a (run, head), two tokens a lane.
constexpr int kWarps = 16;
__global__ void gather_terms(Params p, int64_t size) {
  const int32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, head = blockIdx.x % p.heads;
  const Run run = p.runs[blockIdx.x / p.heads];
  const int64_t first = (run.row * p.heads + head) * p.tokens + run.begin;
  float *const to = p.sums + first;
  const bool by_group = p.form == kPaired;  // a warpgroup has worked on all of a head
  for (int32_t chunk = warp; chunk * kChunk < run.length; chunk += kWarps) {
    float d_g[2] = {0, 0};
    for (int32_t tile = 0; tile < p.num_tiles; ++tile) {
      const float *const row = p.terms + tile * p.terms_size + first;
      float a[2], b[2], c[2];
      for (int i = 0; i < 2; ++i) {
        const int32_t token = chunk * kChunk + 2 * lane + i;
        const bool there = token < run.length;
        const auto part = [&](int which) { return there ? row[which * size + token] : 0.0f; };
        a[i] = part(kQueryHalves) + (by_group ? 0.0f : part(kQueryHalves + 1));
        b[i] = part(kFromAfter);
        c[i] = part(kFromAll) - b[i];
      }
      const float *const passing = p.through + tile * p.through_size +
                                   ((int64_t{run.checkpoint} * kStretch + chunk) * p.heads + head) * kConsumers;
      float through = lane < (by_group ? kConsumers / 2 : kConsumers) ? passing[lane] : 0.0f;
      const float after[2] = {a[0] - c[0], a[1] - c[1]};
      float later = after[0] + after[1], earlier = b[0] + b[1];
      for (int step = 1; step < 32; step *= 2) {
        through += __shfl_xor_sync(~0u, through, step);
        const float down = __shfl_down_sync(~0u, later, step), up = __shfl_up_sync(~0u, earlier, step);
        if (lane + step < 32) later += down;
        if (lane >= step) earlier += up;
      }
      earlier = __shfl_up_sync(~0u, earlier, 1);
      later = __shfl_down_sync(~0u, later, 1);
      const float before = lane == 0 ? 0.0f : earlier, last = (lane == 31 ? 0.0f : later) + after[1];
      d_g[0] += through + (last + after[0]) + before, d_g[1] += through + last + (before + b[0]);
    }
    for (int i = 0; i < 2; ++i)
      if (const int32_t token = chunk * kChunk + 2 * lane + i; token < run.length)
        to[token] = p.diagonal > 0 ? to[token] + d_g[i] : d_g[i];
  }
}

// From is [B, H, T], d_g is [B, T, H]. Block x walks every gridDim.x-th tile of tokens of run y, heads 32
// z on.
template <typename G>
__global__ void sum_tokens(const float *terms, const Run *runs, int64_t num_runs, int64_t tokens, int32_t heads,
                           G *d_g, Strides strides, bool adds) {
  __shared__ float tile[kTokens][kTokens + 1];
  const int32_t head_tiles = (heads + kTokens - 1) / kTokens;
  const int64_t item = blockIdx.x % (num_runs * head_tiles), first = blockIdx.x / (num_runs * head_tiles);
  const int64_t tiles_at_once = gridDim.x / (num_runs * head_tiles);
  const Run run = runs[item / head_tiles];
  const int32_t head = int32_t(item % head_tiles) * kTokens;
  for (int64_t begin = first * kTokens; begin < run.length; begin += tiles_at_once * kTokens) {
    for (int i = threadIdx.y; i < kTokens; i += kRows) {
      if (head + i >= heads || begin + threadIdx.x >= run.length) continue;
      const float *from = terms + (run.row * heads + head + i) * tokens + run.begin + begin + threadIdx.x;
      tile[i][threadIdx.x] = *from;
    }
    __syncthreads();
    for (int i = threadIdx.y; i < kTokens; i += kRows) {
      if (head + threadIdx.x >= heads || begin + i >= run.length) continue;
      G &to = d_g[run.row * strides.batch + (run.begin + begin + i) * strides.token +
                  (head + threadIdx.x) * strides.head];
      to = G(tile[threadIdx.x][i] + (adds ? float(to) : 0.0f));
    }
    __syncthreads();
  }
}

template <typename G>
void enqueue_tokens(const float *from, const FusedBackward &p, Stream stream) {
  const int64_t items = p.num_runs * ((p.heads + kTokens - 1) / kTokens);
  const int64_t tiles = (p.tokens + kTokens - 1) / kTokens, wanted = (1024 + items - 1) / items;
  const int64_t blocks = items * (wanted < tiles ? wanted : tiles);
  sum_tokens<G><<<dim3(unsigned(blocks)), dim3(kTokens, kRows), 0, stream>>>(
      from, p.runs, p.num_runs, p.tokens, p.heads, static_cast<G *>(p.d_g), p.d_g_strides, p.d_g_adds);
}

}  // namespace

int gather_decay_gradient(const Params &params, const FusedBackward &p, Stream stream) {
  gather_terms<<<dim3(unsigned(p.num_runs * p.heads)), dim3(kWarps * 32), 0, stream>>>(
      params, p.batch * p.heads * p.tokens);
  return cudaGetLastError();
}

int launch_decay_gradient(const Params &params, const FusedBackward &p, Stream stream) {
  if (p.decay == Decay::kHead) {
    sum_tokens_of_head<<<dim3(unsigned(p.heads)), dim3(kHeadSumThreads), 0, stream>>>(
        params.sums, p.batch, p.heads, p.tokens, params.live_tokens, p.d_g_adds, static_cast<float *>(p.d_g));
  } else if (p.d_g_float32 || p.decay_dtype == DType::kFloat32) {
    enqueue_tokens<float>(params.sums, p, stream);
  } else if (p.decay_dtype == DType::kBFloat16) {
    enqueue_tokens<__nv_bfloat16>(params.sums, p, stream);
  } else {
    enqueue_tokens<__half>(params.sums, p, stream);
  }
  return cudaGetLastError();
}

int load_decay_gradient_kernels() {
  cudaFuncAttributes attributes;
  cudaError_t status = cudaFuncGetAttributes(&attributes, gather_terms);
  if (status == cudaSuccess) status = cudaFuncGetAttributes(&attributes, sum_tokens_of_head);
  if (status == cudaSuccess) status = cudaFuncGetAttributes(&attributes, sum_tokens<float>);
  if (status == cudaSuccess) status = cudaFuncGetAttributes(&attributes, sum_tokens<__nv_bfloat16>);
  if (status == cudaSuccess) status = cudaFuncGetAttributes(&attributes, sum_tokens<__half>);
  return status;
}

}  // namespace lasp::gpu::hopper::fused
