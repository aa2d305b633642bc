// The gradient of a decay per head out of its tokens' shares.
#pragma once

#include "device.cuh"

namespace lasp::gpu {

// The sum over all tokens of a head, from [batch, heads, tokens], in a fixed order and in float64: the shares are
// many and of either sign. One block a head; each thread has kAhead loads under way.
constexpr int kHeadSumThreads = 512;
static __global__ void __launch_bounds__(kHeadSumThreads)
    sum_tokens_of_head(const float *shares, int64_t batch, int32_t heads, int64_t tokens, float *to) {
  constexpr int kAhead = 8;
  __shared__ double sums[kHeadSumThreads];
  double sum = 0;
  const int64_t count = batch * tokens;
  const auto share = [&](int64_t n) {  // of the n-th token, row after row
    const int64_t row = quotient(n, tokens);
    return shares[(row * heads + blockIdx.x) * tokens + (n - row * tokens)];
  };
  for (int64_t first = threadIdx.x; first < count; first += kAhead * kHeadSumThreads) {
    float ahead[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int64_t n = first + i * kHeadSumThreads;
      ahead[i] = n < count ? share(n) : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) sum += ahead[i];
  }
  sums[threadIdx.x] = sum;
  for (int half = kHeadSumThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
  }
  if (threadIdx.x == 0) to[blockIdx.x] = static_cast<float>(sums[0]);
}

}  // namespace lasp::gpu
