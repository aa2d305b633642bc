// What the decays of a run's tokens leave of a state, and of how many tokens they leave anything (launch.h,
// RunFactors).
#include "elements.cuh"
#include "from_zero.h"

namespace lasp::gpu {
namespace {

// What is left of a token's share in a run's state once these log decays have been added up: less than
// kDecayCutoff.
constexpr double kForgotten = -40 * 0.693147180559945309;  // log kDecayCutoff
__device__ bool forgotten(double log_decay) { return log_decay < kForgotten; }

// Per channel: a thread adds up the tokens of one channel, side by side with its neighbours.
// Sixteen loads are under way before the first is added: each thread's tokens lie far apart.
template <DType kDType>
__device__ double sum_of_tokens(const void *g, int64_t base, int64_t stride, int32_t length) {
  constexpr int kAhead = 16;
  double sum = 0;
  int32_t t = 0;
  for (; t + kAhead <= length; t += kAhead) {
    float ahead[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) ahead[i] = load_element(g, kDType, base + (t + i) * stride);
#pragma unroll
    for (int i = 0; i < kAhead; ++i) sum += ahead[i];
  }
  for (; t < length; ++t) sum += load_element(g, kDType, base + t * stride);
  return sum;
}

__global__ void channel_factors_kernel(int64_t first, RunFactors p, const int64_t *followed) {
  if (followed != nullptr && *followed == 0) return;
  const int64_t per_run = int64_t{p.heads} * p.dim_k, at = thread_index(first);
  if (at >= p.num_runs * per_run) return;
  const Run run = p.runs[at / per_run];
  const int64_t base = offset_of(p.g_strides, run.row, run.begin, at % per_run / p.dim_k) + at % p.dim_k;
  const int64_t stride = p.g_strides.token;
  double sum;
  if (p.decay_dtype == DType::kFloat32)
    sum = sum_of_tokens<DType::kFloat32>(p.g, base, stride, run.length);
  else if (p.decay_dtype == DType::kBFloat16)
    sum = sum_of_tokens<DType::kBFloat16>(p.g, base, stride, run.length);
  else
    sum = sum_of_tokens<DType::kFloat16>(p.g, base, stride, run.length);
  p.factors[at] = decay_code(sum);
}

// What all lower threads of the block have, and by `total` what all together have.
__device__ double sum_before(double x, double *total) {
  __shared__ double of_warps[kThreads / 32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  double sum = x;
  for (int step = 1; step < 32; step *= 2) {
    const double before = __shfl_up_sync(~0u, sum, step);
    if (lane >= step) sum += before;
  }
  __syncthreads();  // the last call's are read
  if (lane == 31) of_warps[warp] = sum;
  __syncthreads();
  double base = 0;
  *total = 0;
  for (int w = 0; w < kThreads / 32; ++w) {
    if (w < warp) base += of_warps[w];
    *total += of_warps[w];
  }
  const double before = __shfl_up_sync(~0u, sum, 1);
  return lane == 0 ? base : base + before;
}

// Per token and head: a block adds up the tokens of a run, which may be the whole sequence, in a fixed order: a
// thread a piece of kPiece tokens, from where the state leaves.
__global__ void __launch_bounds__(kThreads)
    token_factors_kernel(int64_t first, RunFactors p, const int64_t *followed) {
  if (followed != nullptr && *followed == 0) return;
  constexpr int kPiece = 16;
  __shared__ int32_t counted;
  const int64_t item = first + blockIdx.x;
  const Run run = p.runs[item / p.heads];
  if (run.length == 0) return;
  const int64_t base = offset_of(p.g_strides, run.row, run.begin, item % p.heads), stride = p.g_strides.token;
  if (threadIdx.x == 0) counted = 0;
  double behind = 0, own = 0;
  if (p.counts != nullptr) {
    const int begin = p.reversed ? -run.before : run.length, count = p.reversed ? run.before : run.after;
    double sum = 0;
#pragma unroll 4
    for (int t = threadIdx.x; t < count; t += kThreads)
      sum += load_element(p.g, p.decay_dtype, base + (begin + t) * stride);
    sum_before(sum, &behind);
  }
  for (int from = 0; from < run.length; from += kThreads * kPiece) {
    const int piece = from + threadIdx.x * kPiece;
    double sum = 0, growth = 0, all;
#pragma unroll
    for (int i = 0; i < kPiece; ++i) {
      if (piece + i >= run.length) continue;
      const float g =
          load_element(p.g, p.decay_dtype, base + (p.reversed ? piece + i : run.length - 1 - piece - i) * stride);
      sum += g;
      growth += fmaxf(g, 0.0f);
    }
    const double before = sum_before(sum, &all);
    if (piece < run.length && !forgotten(behind + own + before + growth))
      atomicMax(&counted, min(piece + kPiece, run.length));
    own += all;
  }
  __syncthreads();
  if (threadIdx.x > 0) return;
  p.factors[item] = decay_code(own);
  if (p.counts != nullptr) p.counts[item] = counted;
}

}  // namespace

int launch_run_factors_from_zero(const RunFactors &p, const int64_t *followed, Stream stream) {
  const int64_t items = p.num_runs * p.heads;
  if (p.decay == Decay::kChannel)
    return launch_elements(channel_factors_kernel, items * p.dim_k, stream, p, followed);
  return launch_blocks(token_factors_kernel, items, kThreads, 0, stream, p, followed);
}

int launch_run_factors(const RunFactors &p, Stream stream) {
  return launch_run_factors_from_zero(p, nullptr, stream);
}

int load_run_factors() { return load_kernels(channel_factors_kernel, token_factors_kernel); }

}  // namespace lasp::gpu
