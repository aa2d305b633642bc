// The linear pass by mma.sync, for compute capability 8.0 and later. A block walks a run of one head in chunks of
// 16 tokens and owns up to 128 rows of the state as [y.dim, a.dim]. State warps (state.cuh) hold 16 rows each and
// form y; four producer warps (prepare.cuh) scale and score one chunk ahead of them, and copy further ahead. All
// meet once a chunk.
#pragma once

#include "find_kernel.cuh"
#include "prepare.cuh"
#include "state.cuh"

namespace lasp::gpu::mma {

template <typename T, int kDim, Kind kKind>
__global__ void __launch_bounds__(Layout<kDim, kKind>::kMostThreads, 1)
    linear_pass_kernel(int64_t first, const __grid_constant__ PassParams p) {
  extern __shared__ uint4 memory[];
  using L = Layout<kDim, kKind>;
  const Part part(p, first + blockIdx.x);
  if (!part.wanted(p)) return;
  // Columns and rows beyond the tensors' are read as zeros, and never written.
  for (int i = threadIdx.x; i < L::bytes(p.slots) / 16; i += blockDim.x) memory[i] = uint4{0, 0, 0, 0};
  init_meeting();
  __syncthreads();
  char *const shared = reinterpret_cast<char *>(memory);
  if (int(threadIdx.x) < 32 * p.slice_warps) {
    State<T, kDim, kKind>(p, part, shared).run();
  } else {
    run_producer<T, kDim, kKind>(p, part, shared);
  }
}

template <typename T, int kDim, Kind kKind>
Kernel kernel_of() {
  return {linear_pass_kernel<T, kDim, kKind>, Layout<kDim, kKind>::kSlots, Layout<kDim, kKind>::kSlot};
}

template <typename T>
Kernel find_kernel(int32_t dim, Kind kind) {
  const auto of_kind = [&]<Kind kKind>() {
    return dim == 64    ? kernel_of<T, 64, kKind>()
           : dim == 128 ? kernel_of<T, 128, kKind>()
                        : kernel_of<T, 256, kKind>();
  };
  if (kind == Kind::kColumns) return of_kind.template operator()<Kind::kColumns>();
  if (kind == Kind::kRows) return of_kind.template operator()<Kind::kRows>();
  return of_kind.template operator()<Kind::kToken>();
}

}  // namespace lasp::gpu::mma
