// The linear pass by mma.sync, for compute capability 8.0 and later (launch.h, LinearPass). A block walks a run of
// one head in chunks of 16 tokens and owns up to 128 rows of the state as R^T [y.dim, a.dim]. Rows of a chunk are
// its tokens in the order of the walk, so that a reversed pass is a forward one. With D(j, i) the decay from row j
// to row i, and D(i) that from the chunk's beginning:
//
//   y_i = scale (R^T D(i) a_i  +  sum_{j <= i} P_ij c_j)          P_ij = a_i . D(j, i) b_j
//   R^T = R^T D(end)  +  sum_j c_j (D(j, end) b_j)^T
//
// D is a number a token or, per channel, a diagonal that acts on the columns of R^T, as here, or on its rows (Kind
// in layout.cuh). How it is split into factors of both sides: apply_decay.cuh.
//
//   state warps       16 rows of R^T each, in float32 registers: y and the update of a chunk (state.cuh)
//   producer warps    four. All scale (prepare.cuh, apply_decay.cuh); warps 0 and 1 find the scores P (scores.cuh),
//                     warp 2 copies a and b, warp 3 c and g (copy.cuh). Where a channel's decay is too steep for
//                     that, all four find the scores
//
// Barriers:
//
//   name          arrives and waits             count        protects
//   barrier 0     all warps, once a chunk       all threads  what the producers have made of a chunk, until it is
//   (sync_all)                                               whole; its stage and its copies, until the state warps
//                                                            are done with them
//   barrier 1     the producer warps, within    128          sums, scores and scaled rows that they hand each
//   (sync_some)   a chunk                                    other
//   groups of     the lanes that copy           -            a chunk in its stage, until it is there: waited for
//   cp.async                                                 before the barrier 0 after which it is scaled
//
// Between two meetings at barrier 0, with p.stages stages:
//
//   state warps      | y and update of chunk n                        |
//   producer warps   | scale and score chunk n + 1                    |
//   copies           | chunks n + 2 .. n + stages - 1 on their way     |
#pragma once

#include "find_kernel.cuh"
#include "prepare.cuh"
#include "state.cuh"

namespace lasp::gpu::mma {

template <typename T, int kDim, Kind kKind, Result kResult>
__global__ void __launch_bounds__(Layout<kDim, kKind>::kMostThreads, 1)
    linear_pass_kernel(int64_t first, const __grid_constant__ PassParams p) {
  extern __shared__ uint4 memory[];
  using L = Layout<kDim, kKind>;
  const Part part(p, first + blockIdx.x);
  if (!part.wanted(p)) return;
  // Columns and rows beyond the tensors' are read as zeros, and never written.
  for (int i = threadIdx.x; i < L::bytes(p.stages) / 16; i += blockDim.x) memory[i] = uint4{0, 0, 0, 0};
  init_meeting();
  __syncthreads();
  char *const shared = reinterpret_cast<char *>(memory);
  if (int(threadIdx.x) < 32 * p.slice_warps) {
    State<T, kDim, kKind, kResult>(p, part, shared).run();
  } else {
    run_producer<T, kDim, kKind>(p, part, shared);
  }
}

template <typename T, int kDim, Kind kKind, Result kResult>
Kernel kernel_of() {
  return {linear_pass_kernel<T, kDim, kKind, kResult>, Layout<kDim, kKind>::kFirstStage,
          Layout<kDim, kKind>::kStageBytes};
}

template <typename T, Result kResult>
Kernel find_kernel(int32_t dim, Kind kind) {
  const auto of_kind = [&]<Kind kKind>() {
    return dim == 64    ? kernel_of<T, 64, kKind, kResult>()
           : dim == 128 ? kernel_of<T, 128, kKind, kResult>()
                        : kernel_of<T, 256, kKind, kResult>();
  };
  if (kind == Kind::kColumns) return of_kind.template operator()<Kind::kColumns>();
  if (kind == Kind::kRows) return of_kind.template operator()<Kind::kRows>();
  return of_kind.template operator()<Kind::kToken>();
}

}  // namespace lasp::gpu::mma
