// Every gradient of a stretch, the tokens between two checkpoints: walked back from the gradient of the state after
// it. The states before its chunks and their E wait in memory (forward.cu, Mode::kStretch). A block has all of a
// head: two warpgroups walk, each with half of V's columns, and then take half of K's columns of dq and dk each.
//
// With R the state's gradient over `scale`, D_ij = 2^(G_i - G_j) and dv = scale beta Z:
//   Aq = scale lower(D . do E^T) diag(beta)        Ak = -strictly lower(D . dv E^T) diag(beta)
//   dq = scale 2^G do S^T + Aq k                   dk_row = Ak k - 2^G dv S^T
//   dk_col = Aq^T q + Ak^T k + W                   W = scale 2^(G_C - G) beta E R^T
//   d_beta = the diagonal of scale Z E^T           dG = q . dq + k . (dk_row - dk_col)
// and of the last row scale 2^(G_C) <S, R> + sum of k . W besides; d_g is the sum of dG from a token to the chunk's
// end.
#pragma once

#include "gradients_walk.cuh"
#include "passes.h"

namespace lasp::gpu::delta_hopper::gradients {

// kPairs: blocks 2 i and 2 i + 1 are a cluster, whose heads share one of q and k.
template <typename T, bool kDecay, bool kDirect, bool kPairs>
__global__ void __launch_bounds__(kThreads, 1)
    gradients(const int64_t first, const DeltaGradients p, const Slots slots, const Stretches kept,
              float *const partial, const __grid_constant__ GradientMaps maps) {
  extern __shared__ __align__(1024) char shared[];
  __shared__ Place place;  // not in registers, of which walkers have none to spare
  Place mine;
  const int64_t b = first + blockIdx.x;
  mine.slice = 0, mine.head = int32_t(b % p.heads), mine.index = b / p.heads;
  if (!start_run(p, p.filter, mine)) return;
  place_results(p, slots, maps.inputs.fits, mine);
  if (threadIdx.x == 0) place = mine;
  const Block block{shared_address(shared)};
  block.template begin<kPairs>();
  const int warp = __shfl_sync(~0u, int(threadIdx.x / 32), 0);
  if (warp < kWalkers / 32) {
    hopper::take_registers<kWalkerRegisters>();
    Walker<T, kDecay, kDirect, kPairs, false> walker{
        {p, place, block, maps, warp / 4, warp % 4, int(threadIdx.x % 32)}, {}};
    load_over_scale<T>(walker.s, p, place, slots.columns, warp / 4);
    walker.run();
  } else {
    hopper::give_registers<kProducerRegisters>();
    Rows<kDecay, kDirect, 1> rows{p, place, block, partial, slots.first_column > 0};
    Copies{p, place, block, maps.inputs}.run(slots, kept, rows);
  }
  if constexpr (kPairs) hopper::cluster_sync();  // no block leaves while the other reads from it
}

template <bool kPairs, typename T>
int launch_typed(const DeltaGradients &p, const Slots &slots, const Stretches &kept, float *partial,
                 Stream stream) {
  const bool direct = writes_directly(p);
  const auto kernel = p.decay == Decay::kNone
                          ? (direct ? gradients<T, false, true, kPairs> : gradients<T, false, false, kPairs>)
                          : (direct ? gradients<T, true, true, kPairs> : gradients<T, true, false, kPairs>);
  const int64_t blocks = p.num_runs * p.heads;
  GradientMaps maps = encode_results(p);
  encode_maps(maps.inputs, p, p.d_o, true, kChunk);
  if constexpr (kPairs)
    return launch_pairs(kernel, blocks, kThreads, kBytes, stream, p, slots, kept, partial, maps);
  return launch_blocks(kernel, blocks, kThreads, kBytes, stream, p, slots, kept, partial, maps);
}
template <bool kPairs>
int launch(const DeltaGradients &p, const Slots &slots, const Stretches &kept, float *partial, Stream stream) {
  return p.dtype == DType::kBFloat16 ? launch_typed<kPairs, __nv_bfloat16>(p, slots, kept, partial, stream)
                                     : launch_typed<kPairs, __half>(p, slots, kept, partial, stream);
}

template <bool kPairs>
int load() {
  for (const auto kernel :
       {gradients<__nv_bfloat16, false, false, kPairs>, gradients<__nv_bfloat16, false, true, kPairs>,
        gradients<__nv_bfloat16, true, false, kPairs>, gradients<__nv_bfloat16, true, true, kPairs>,
        gradients<__half, false, false, kPairs>, gradients<__half, false, true, kPairs>,
        gradients<__half, true, false, kPairs>, gradients<__half, true, true, kPairs>})
    if (const int error = load_kernel(kernel, kBytes)) return error;
  return cudaSuccess;
}

}  // namespace lasp::gpu::delta_hopper::gradients
