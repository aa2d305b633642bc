// The mma linear pass of float16 tensors.
#include "linear_pass.cuh"

namespace lasp::gpu::mma {

Kernel find_kernel_float16(int32_t dim, Kind kind) { return find_kernel<__half, Result::kRounded>(dim, kind); }

}  // namespace lasp::gpu::mma
