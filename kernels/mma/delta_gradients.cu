// The instances of the gradients of stretches.
#include "../head_sum.cuh"
#include "delta_gradients.cuh"

namespace lasp::gpu::mma_delta {
namespace {

struct Kernel {
  void (*function)(int64_t, GradientPass, int stages);
  int bytes, bytes_of_two;  // of shared memory, with one stage or two
};
template <typename T, bool kDecay, bool kMore>
Kernel kernel_of() {
  return {gradients<T, kDecay, kMore>, GradientMemory<kMore>::bytes(1), GradientMemory<kMore>::bytes(2)};
}
template <typename T, bool kDecay>
Kernel kernel_of(bool more) {
  return more ? kernel_of<T, kDecay, true>() : kernel_of<T, kDecay, false>();
}
Kernel kernel_for(DType type, bool decay, bool more) {
  if (type == DType::kBFloat16)
    return decay ? kernel_of<__nv_bfloat16, true>(more) : kernel_of<__nv_bfloat16, false>(more);
  return decay ? kernel_of<__half, true>(more) : kernel_of<__half, false>(more);
}

}  // namespace

int launch_stretch_gradients(const DeltaGradients &pass, float *token_d_g, Stream stream) {
  GradientPass p{pass, token_d_g};
  p.d_g_dtype = p.d_g_float32 ? DType::kFloat32 : p.decay_dtype;
  const Kernel kernel = kernel_for(p.dtype, p.decay != Decay::kNone, p.k.dim > kMostRows);
  cudaFuncAttributes attributes;
  int most = 0;
  if (const cudaError_t error = cudaFuncGetAttributes(&attributes, kernel.function)) return error;
  if (const int error = most_dynamic_shared(attributes, &most)) return error;
  const bool two = p.v.dim > kSlice && most >= kernel.bytes_of_two;
  if (const int error = launch_blocks(kernel.function, p.num_runs * p.heads, kGradientThreads,
                                      size_t(two ? kernel.bytes_of_two : kernel.bytes), stream, p, two ? 2 : 1))
    return error;
  if (p.decay != Decay::kHead || p.d_g == nullptr || !p.last) return cudaSuccess;
  sum_tokens_of_head<<<dim3(unsigned(p.heads)), dim3(kHeadSumThreads), 0, stream>>>(
      token_d_g, p.batch, p.heads, p.tokens, p.d_g_adds, static_cast<float *>(p.d_g));
  return cudaGetLastError();
}

int64_t gradients_shared_bytes(int32_t dim_k) {
  return dim_k > kMostRows ? GradientMemory<true>::bytes(1) : GradientMemory<false>::bytes(1);
}

int load_stretch_gradients() {
  for (const DType type : {DType::kBFloat16, DType::kFloat16})
    for (const bool decay : {false, true})
      for (const bool more : {false, true}) {
        const Kernel kernel = kernel_for(type, decay, more);
        if (const int error = load_kernel(kernel.function, size_t(kernel.bytes_of_two))) return error;
      }
  return load_kernels(sum_tokens_of_head);
}

}  // namespace lasp::gpu::mma_delta
