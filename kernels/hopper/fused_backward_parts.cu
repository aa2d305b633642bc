// The second kernel of the fused backward pass: the gradient of the log decay from the parts that each slice of the
// head dimension has left, added in a fixed order.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include "fused_backward_internal.h"

namespace lasp::gpu::hopper::fused {
namespace {

constexpr int kSlices = 4;
constexpr int kTokens = 32;  // of a tile: tokens by heads, turned over in shared memory
constexpr int kRows = 8;     // of a block's threads

// Parts are [slices, B, H, T], d_g is [B, T, H]. Block x walks every gridDim.x-th tile of tokens of run y, heads 32
// z on.
template <typename G>
__global__ void sum_tokens(const float *parts, const Run *runs, int64_t num_runs, int64_t batch, int64_t tokens,
                           int32_t heads, G *d_g, Strides strides) {
  __shared__ float tile[kTokens][kTokens + 1];
  const int32_t head_tiles = (heads + kTokens - 1) / kTokens;
  const int64_t item = blockIdx.x % (num_runs * head_tiles), first = blockIdx.x / (num_runs * head_tiles);
  const int64_t tiles_at_once = gridDim.x / (num_runs * head_tiles);
  const Run run = runs[item / head_tiles];
  const int32_t head = int32_t(item % head_tiles) * kTokens;
  const int64_t slice_size = batch * heads * tokens;
  for (int64_t begin = first * kTokens; begin < run.length; begin += tiles_at_once * kTokens) {
    for (int i = threadIdx.y; i < kTokens; i += kRows) {
      if (head + i >= heads || begin + threadIdx.x >= run.length) continue;
      const float *from = parts + (run.row * heads + head + i) * tokens + run.begin + begin + threadIdx.x;
      float sum = 0;
#pragma unroll
      for (int s = 0; s < kSlices; ++s) sum += from[s * slice_size];
      tile[i][threadIdx.x] = sum;
    }
    __syncthreads();
    for (int i = threadIdx.y; i < kTokens; i += kRows) {
      if (head + threadIdx.x >= heads || begin + i >= run.length) continue;
      d_g[run.row * strides.batch + (run.begin + begin + i) * strides.token + (head + threadIdx.x) * strides.head] =
          G(tile[threadIdx.x][i]);
    }
    __syncthreads();
  }
}

// One block per head: the sum over all tokens of all runs.
constexpr int kHeadThreads = 512;
__global__ void sum_heads(const float *parts, const Run *runs, int64_t num_runs, int64_t batch, int64_t tokens,
                          int32_t heads, float *d_g) {
  __shared__ float sums[kHeadThreads];
  const int64_t slice_size = batch * heads * tokens;
  float sum = 0;
  for (int64_t r = 0; r < num_runs; ++r) {
    const Run run = runs[r];
    const float *from = parts + (run.row * heads + blockIdx.x) * tokens + run.begin;
    for (int64_t t = threadIdx.x; t < run.length; t += kHeadThreads)
#pragma unroll
      for (int s = 0; s < kSlices; ++s) sum += from[s * slice_size + t];
  }
  sums[threadIdx.x] = sum;
  for (int half = kHeadThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
  }
  if (threadIdx.x == 0) d_g[blockIdx.x] = sums[0];
}

template <typename G>
void enqueue_tokens(const FusedBackward &p, Stream stream) {
  const int64_t items = p.num_runs * ((p.heads + kTokens - 1) / kTokens);
  const int64_t tiles = (p.tokens + kTokens - 1) / kTokens, wanted = (1024 + items - 1) / items;
  const int64_t blocks = items * (wanted < tiles ? wanted : tiles);
  sum_tokens<G><<<dim3(unsigned(blocks)), dim3(kTokens, kRows), 0, stream>>>(
      p.parts, p.runs, p.num_runs, p.batch, p.tokens, p.heads, static_cast<G *>(p.d_g), p.d_g_strides);
}

}  // namespace

int launch_sum_parts(const FusedBackward &p, Stream stream) {
  if (p.decay == Decay::kHead) {
    sum_heads<<<dim3(unsigned(p.heads)), dim3(kHeadThreads), 0, stream>>>(
        p.parts, p.runs, p.num_runs, p.batch, p.tokens, p.heads, static_cast<float *>(p.d_g));
  } else if (p.decay_dtype == DType::kFloat32) {
    enqueue_tokens<float>(p, stream);
  } else if (p.decay_dtype == DType::kBFloat16) {
    enqueue_tokens<__nv_bfloat16>(p, stream);
  } else {
    enqueue_tokens<__half>(p, stream);
  }
  return cudaGetLastError();
}

int load_sum_parts() {
  cudaFuncAttributes attributes;
  cudaError_t status = cudaFuncGetAttributes(&attributes, sum_heads);
  if (status == cudaSuccess) status = cudaFuncGetAttributes(&attributes, sum_tokens<float>);
  if (status == cudaSuccess) status = cudaFuncGetAttributes(&attributes, sum_tokens<__nv_bfloat16>);
  if (status == cudaSuccess) status = cudaFuncGetAttributes(&attributes, sum_tokens<__half>);
  return status;
}

}  // namespace lasp::gpu::hopper::fused
