// The gradient of the log decay: which kernel finds it, and its sum over the tokens of a head.
#include "decay_products.h"
#include "device.cuh"
#include "head_sum.cuh"

namespace lasp::gpu {
namespace {

int64_t head_totals(const DecayGradient &p) { return p.decay == Decay::kHead ? p.batch * p.heads * p.tokens : 0; }

}  // namespace

int64_t decay_gradient_workspace(const DecayGradient &p) {
  if (p.decay == Decay::kChannel || p.decay == Decay::kNone) return 0;
  return head_totals(p) + decay_products_workspace(p);
}

int launch_decay_gradient(const DecayGradient &p, Stream stream) {
  if (p.decay == Decay::kChannel) return launch_channel_products(p, stream);
  if (p.decay != Decay::kHead) return launch_decay_products(p, nullptr, stream);
  if (p.padded && p.first)
    if (const int error = cudaMemsetAsync(p.workspace, 0, head_totals(p) * sizeof(float), stream)) return error;
  DecayGradient products = p;
  products.workspace = p.workspace + head_totals(p);
  if (const int error = launch_decay_products(products, p.workspace, stream)) return error;
  if (!p.last) return cudaSuccess;
  sum_tokens_of_head<<<dim3(unsigned(p.heads)), dim3(kHeadSumThreads), 0, stream>>>(
      p.workspace, p.batch, p.heads, p.tokens, p.d_g_adds, static_cast<float *>(p.d_g));
  return cudaGetLastError();
}

int load_decay_gradient() {
  int error = load_decay_products();
  if (error == cudaSuccess) error = load_channel_products();
  return error ? error : load_kernels(sum_tokens_of_head);
}

}  // namespace lasp::gpu
