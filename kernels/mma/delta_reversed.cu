// The instances of the reversed walk.
#include "delta_reversed.cuh"
#include "delta_walks.h"

namespace lasp::gpu::mma_delta {
namespace {

template <typename T, int kRows, bool kDecay, int kSplit>
WalkKernel<DeltaReversed> kernel_of() {
  return {reversed<T, kRows, kDecay, kSplit>, columns_of_block(kSplit), Stage<kRows, kSplit>::kBytes,
          Partner<kSplit>::kBytes + Handed<kRows, kSplit>::kBytes, threads_of_block(kSplit)};
}
template <typename T, bool kDecay>
WalkKernel<DeltaReversed> with_rows(int32_t dim_k, bool split) {
  if (dim_k <= 64) return kernel_of<T, 64, kDecay, 1>();
  if (dim_k <= 128) return split ? kernel_of<T, 128, kDecay, 2>() : kernel_of<T, 128, kDecay, 1>();
  return split ? kernel_of<T, 256, kDecay, 2>() : kernel_of<T, 256, kDecay, 1>();
}

}  // namespace

WalkKernel<DeltaReversed> reversed_kernel(DType type, bool decay, int32_t dim_k, bool split) {
  if (type == DType::kBFloat16)
    return decay ? with_rows<__nv_bfloat16, true>(dim_k, split) : with_rows<__nv_bfloat16, false>(dim_k, split);
  return decay ? with_rows<__half, true>(dim_k, split) : with_rows<__half, false>(dim_k, split);
}

}  // namespace lasp::gpu::mma_delta
