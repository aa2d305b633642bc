// The instances of the forward walk.
#include "delta_forward.cuh"
#include "delta_walks.h"

namespace lasp::gpu::mma_delta {
namespace {

template <typename T, int kRows, bool kDecay, int kSplit>
WalkKernel<DeltaForward> kernel_of() {
  return {forward<T, kRows, kDecay, kSplit>, columns_of_block(kSplit), Stage<kRows>::kBytes,
          Partner<kSplit>::kBytes};
}
template <typename T, bool kDecay>
WalkKernel<DeltaForward> with_rows(int32_t dim_k, bool split) {
  if (dim_k <= 64) return kernel_of<T, 64, kDecay, 1>();
  if (dim_k <= 128) return split ? kernel_of<T, 128, kDecay, 2>() : kernel_of<T, 128, kDecay, 1>();
  return split ? kernel_of<T, 256, kDecay, 2>() : kernel_of<T, 256, kDecay, 1>();
}

template <typename T, bool kDecay, typename Use>
int with_stretch(int32_t dim_k, Use use) {
  if (dim_k <= 64) return use(stretch_errors<T, 64, kDecay>, Stage<64>::kBytes);
  if (dim_k <= 128) return use(stretch_errors<T, 128, kDecay>, Stage<128>::kBytes);
  return use(stretch_errors<T, 256, kDecay>, Stage<256>::kBytes);
}
template <typename T, typename Use>
int with_stretch(bool decay, int32_t dim_k, Use use) {
  return decay ? with_stretch<T, true>(dim_k, use) : with_stretch<T, false>(dim_k, use);
}
template <typename T>
int launch(const DeltaForward &p, const Slots &slots, void *kept, Stream stream) {
  return with_stretch<T>(p.decay != Decay::kNone, p.k.dim, [&](auto kernel, int bytes) {
    const int64_t blocks = p.num_runs * p.heads * delta_hopper::slices_of(p.v.dim);
    return launch_blocks(kernel, blocks, kThreads, size_t(bytes), stream, p, slots, static_cast<T *>(kept));
  });
}
template <typename T>
int load() {
  for (const bool decay : {false, true})
    for (const int32_t dim_k : {64, 128, 256})
      if (const int error = with_stretch<T>(
              decay, dim_k, [](auto kernel, int bytes) { return load_kernel(kernel, size_t(bytes)); }))
        return error;
  return cudaSuccess;
}

}  // namespace

WalkKernel<DeltaForward> forward_kernel(DType type, bool decay, int32_t dim_k, bool split) {
  if (type == DType::kBFloat16)
    return decay ? with_rows<__nv_bfloat16, true>(dim_k, split) : with_rows<__nv_bfloat16, false>(dim_k, split);
  return decay ? with_rows<__half, true>(dim_k, split) : with_rows<__half, false>(dim_k, split);
}

int launch_stretch_errors(const DeltaForward &p, const Slots &slots, void *kept, Stream stream) {
  return p.dtype == DType::kBFloat16 ? launch<__nv_bfloat16>(p, slots, kept, stream)
                                     : launch<__half>(p, slots, kept, stream);
}
int load_stretch_errors() {
  if (const int error = load<__nv_bfloat16>()) return error;
  return load<__half>();
}

}  // namespace lasp::gpu::mma_delta
