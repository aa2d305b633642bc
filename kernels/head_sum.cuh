// The gradient of a decay per head out of its tokens' shares.
#pragma once

#include "device.cuh"

namespace lasp::gpu {

constexpr int kHeadSumThreads = 1024;

// The sum of what at(0), at(1) .. at(count - 1) give to this thread's turn, with many loads under way at once.
template <class At>
__device__ double sum_of_turn(int64_t count, At at) {
  constexpr int kAhead = 16;
  double sum = 0;
  for (int64_t first = threadIdx.x; first < count; first += kAhead * kHeadSumThreads) {
    float ahead[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int64_t n = first + i * kHeadSumThreads;
      ahead[i] = n < count ? at(n) : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) sum += ahead[i];
  }
  return sum;
}

// The sum over all tokens of a head, from [batch, heads, tokens], in a fixed order and in float64: the shares are
// many and of either sign. One block a head. `adds`: to what is there.
static __global__ void __launch_bounds__(kHeadSumThreads)
    sum_tokens_of_head(const float *shares, int64_t batch, int32_t heads, int64_t tokens, bool adds, float *to) {
  __shared__ double sums[kHeadSumThreads];
  const auto row = [&](int64_t index) { return shares + (index * heads + blockIdx.x) * tokens; };
  double sum = 0;
  if (tokens < kHeadSumThreads) {  // short rows, one after the other
    sum = sum_of_turn(batch * tokens, [&](int64_t n) {
      const int64_t index = quotient(n, tokens);
      return row(index)[n - index * tokens];
    });
  } else {
    for (int64_t index = 0; index < batch; ++index)
      sum += sum_of_turn(tokens, [from = row(index)](int64_t n) { return from[n]; });
  }
  sums[threadIdx.x] = sum;
  for (int half = kHeadSumThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
  }
  if (threadIdx.x == 0)
    to[blockIdx.x] = static_cast<float>(adds ? static_cast<double>(to[blockIdx.x]) + sums[0] : sums[0]);
}

}  // namespace lasp::gpu
