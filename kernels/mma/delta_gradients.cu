// The instances of the gradients of stretches.
#include "../head_sum.cuh"
#include "delta_gradients.cuh"

namespace lasp::gpu::mma_delta {
namespace {

using Kernel = void (*)(int64_t, GradientPass, Slots);
Kernel kernel_for(DType type, bool decay) {
  if (type == DType::kBFloat16) return decay ? gradients<__nv_bfloat16, true> : gradients<__nv_bfloat16, false>;
  return decay ? gradients<__half, true> : gradients<__half, false>;
}

}  // namespace

int launch_stretch_gradients(const DeltaGradients &pass, const Slots &slots, const void *errors,
                             const void *written, float *token_d_g, Stream stream) {
  GradientPass p{pass, errors, written, token_d_g};
  p.d_g_dtype = p.d_g_float32 ? DType::kFloat32 : p.decay_dtype;
  if (const int error = launch_blocks(kernel_for(p.dtype, p.decay != Decay::kNone), p.num_runs * p.heads,
                                      kGradientThreads, size_t(GradientMemory::kBytes), stream, p, slots))
    return error;
  if (p.decay != Decay::kHead || p.d_g == nullptr || !p.last) return cudaSuccess;
  sum_tokens_of_head<<<dim3(unsigned(p.heads)), dim3(kHeadSumThreads), 0, stream>>>(
      token_d_g, p.batch, p.heads, p.tokens, p.d_g_adds, static_cast<float *>(p.d_g));
  return cudaGetLastError();
}

int64_t gradients_shared_bytes() { return GradientMemory::kBytes; }

int load_stretch_gradients() {
  for (const DType type : {DType::kBFloat16, DType::kFloat16})
    for (const bool decay : {false, true})
      if (const int error = load_kernel(kernel_for(type, decay), size_t(GradientMemory::kBytes))) return error;
  return load_kernels(sum_tokens_of_head);
}

}  // namespace lasp::gpu::mma_delta
