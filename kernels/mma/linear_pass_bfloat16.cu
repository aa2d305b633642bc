// The mma linear pass of bfloat16 tensors.
#include "linear_pass.cuh"

namespace lasp::gpu::mma {

Kernel find_kernel_bfloat16(int32_t dim, Kind kind) {
  return find_kernel<__nv_bfloat16, Result::kRounded>(dim, kind);
}

}  // namespace lasp::gpu::mma
