// The gradient of the log decay: which kernel finds it, and its sum over the tokens of a head.
#include "decay_products.h"
#include "device.cuh"

namespace lasp::gpu {
namespace {

// One block per head adds all its tokens in a fixed order, in float64: they are many and of either sign.
constexpr int kHeadThreads = 512;
__global__ void __launch_bounds__(kHeadThreads)
    head_gradient_kernel(int64_t first, DecayGradient p, const float *totals) {
  __shared__ double sums[kHeadThreads];
  const int64_t head = first + blockIdx.x;
  double sum = 0;
  for (int64_t line = 0; line < p.batch; ++line) {
    const float *of_head = totals + (line * p.heads + head) * p.tokens;
    for (int64_t t = threadIdx.x; t < p.tokens; t += kHeadThreads) sum += of_head[t];
  }
  sums[threadIdx.x] = sum;
  for (int half = kHeadThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
  }
  if (threadIdx.x == 0) static_cast<float *>(p.d_g)[head] = static_cast<float>(sums[0]);
}

int64_t head_totals(const DecayGradient &p) { return p.decay == Decay::kHead ? p.batch * p.heads * p.tokens : 0; }

}  // namespace

int64_t decay_gradient_parts(const DecayGradient &p) {
  if (p.decay == Decay::kChannel || p.decay == Decay::kNone) return 0;
  return head_totals(p) + decay_products_parts(p);
}

int launch_decay_gradient(const DecayGradient &p, Stream stream) {
  if (p.decay == Decay::kChannel) return launch_channel_products(p, stream);
  if (p.decay != Decay::kHead) return launch_decay_products(p, nullptr, stream);
  DecayGradient products = p;
  products.parts = p.parts + head_totals(p);
  if (const int error = launch_decay_products(products, p.parts, stream)) return error;
  if (!p.last) return cudaSuccess;
  return launch_blocks(head_gradient_kernel, p.heads, kHeadThreads, 0, stream, p, p.parts);
}

int load_decay_gradient() {
  int error = load_decay_products();
  if (error == cudaSuccess) error = load_channel_products();
  return error ? error : load_kernels(head_gradient_kernel);
}

}  // namespace lasp::gpu
