// The mma linear pass's kernels by element type, dimension, kind of decay and result: compiled one type and result
// per file, found by the host side.
#pragma once

#include "layout.cuh"

namespace lasp::gpu::mma {

struct Kernel {
  void (*function)(int64_t, PassParams) = nullptr;
  int64_t fixed_bytes = 0, stage_bytes = 0;  // of shared memory
};
// `dim`: 64, 128 or 256.
Kernel find_kernel_bfloat16(int32_t dim, Kind kind);
Kernel find_kernel_float16(int32_t dim, Kind kind);
// Result::kGradient; of passes with a y.
Kernel find_gradient_kernel_bfloat16(int32_t dim, Kind kind);
Kernel find_gradient_kernel_float16(int32_t dim, Kind kind);

}  // namespace lasp::gpu::mma
