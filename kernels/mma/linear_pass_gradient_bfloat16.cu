// The mma linear pass of bfloat16 tensors whose y is a gradient in float32, or joins what is there.
#include "linear_pass.cuh"

namespace lasp::gpu::mma {

Kernel find_gradient_kernel_bfloat16(int32_t dim, Kind kind) {
  return find_kernel<__nv_bfloat16, Result::kGradient>(dim, kind);
}

}  // namespace lasp::gpu::mma
