// The kernels of the backward walks with per-channel decay by wgmma, for one element type (../launch.h,
// ChannelBackward; the formulas are in ../mma/channel_walk.cuh). A block walks the chunks of 32 tokens of one run.
//
//   walkers 0, 1   64 channels each (channel_backward_walk.cuh)
//   helper         copies; summed decays, Way and scores of a chunk (channel_backward_prepare.cuh)
//
// Barriers:
//
//   name           arrives            waits     protects
//   full[stage]    the copy engine    all       a chunk in its stage
//   ready[n % 2]   4 helper warps     walkers   what the helper makes of chunk n; at last of the run's end
//   empty[stage]   8 walker warps     helper    both, until the walkers have read them
//   named 1        the helper         itself    decays and cleared rows; its votes on the Way
//
//   copies    n+3 (forward n+4 or n+5) | ..
//   helper    n+1                      | n+2
//   walkers   products, y, update of n | of n+1
#pragma once

#include "../launch.h"
#include "channel_backward.h"
#include "channel_backward_prepare.cuh"
#include "channel_backward_walk.cuh"
#include "tensor_map.h"

namespace lasp::gpu::hopper::channel_backward {

template <typename T, int kHeads, int kColumns, bool kReversed, bool kPlain>
__global__ void __launch_bounds__(kThreads, 1)
    channel_backward_kernel(int64_t first, const __grid_constant__ Params p) {
  extern __shared__ unsigned char shared[];
  using L = Layout<kHeads, kColumns, kReversed>;
  const int64_t number = first + blockIdx.x;
  const Block<kHeads, kColumns, kReversed> block(p, shared, number);
  if (block.chunks == 0) return;
  const int group = __shfl_sync(~0u, int(threadIdx.x / 128), 0);
  if (threadIdx.x == 0) {
    for (uint32_t s = 0; s < L::kStages; ++s) {
      barrier_init(block.full(s), 1);
      barrier_init(block.empty(s), 4 * kWalkers * kWarpArrivals);
    }
    for (int n = 0; n < L::kBesides; ++n) barrier_init(block.ready(n), 4 * kWarpArrivals);
    barrier_init_fence();
  }
  __syncthreads();
  if (group < kWalkers) {
    take_registers<L::kWalkerRegisters>();
    const int64_t head = number % p.blocks / p.walk.row_tiles * kHeads + (kHeads == 1 ? 0 : group);
    Walker<T, kHeads, kColumns, kReversed, kPlain>(p, block, group, head < p.walk.heads).run();
  } else {
    give_registers<L::kHelperRegisters>();
    Helper<T, kHeads, kColumns, kReversed, kPlain>(p, block).run();
  }
}

// Calls `use` with the kernel for the rows and columns of a tile and the direction, plain or not
// (../mma/channel_memory.cuh), and with its layout and heads of a block.
template <typename T, typename Use>
int with_kernel(int rows, int columns, bool reversed, bool plain, Use use) {
  const auto choose = [&]<int kHeads, int kColumns, bool kReversed>() {
    return plain ? use(channel_backward_kernel<T, kHeads, kColumns, kReversed, true>,
                       Layout<kHeads, kColumns, kReversed>(), kHeads)
                 : use(channel_backward_kernel<T, kHeads, kColumns, kReversed, false>,
                       Layout<kHeads, kColumns, kReversed>(), kHeads);
  };
  const auto of_dims = [&]<int kHeads, int kColumns>() {
    return reversed ? choose.template operator()<kHeads, kColumns, true>()
                    : choose.template operator()<kHeads, kColumns, false>();
  };
  if (rows == 128 && columns == 128) return of_dims.template operator()<1, 128>();
  if (rows == 128 && columns == 64) return of_dims.template operator()<1, 64>();
  if (rows == 64 && columns == 64) return of_dims.template operator()<2, 64>();
  return cudaErrorInvalidValue;
}

inline bool encode_maps(Params &p, const BackwardPass &pass, bool reversed, int heads) {
  const Walk &walk = p.walk;
  const int32_t panels = kWalkers / heads, keys = walk.c.dim * walk.row_tiles;
  const auto map = [&](CUtensorMap &to, const Tensor &t, int32_t dim, DType type, int32_t its_panels) {
    Tensor whole = t;
    whole.dim = dim;
    return encode_panels_map(to, whole, pass.batch, pass.tokens, type, kTokens, uint32_t(its_panels));
  };
  const auto full = [&](CUtensorMap &to, const void *data, const Strides &strides, bool is_float) {
    return map(to, {const_cast<void *>(data), strides, walk.heads, keys}, keys,
               is_float ? DType::kFloat32 : pass.dtype, is_float ? 2 * panels : panels);
  };
  const bool good = map(p.a, walk.a, walk.a.dim, pass.dtype, walk.a.dim / 64) &&
                    map(p.b, walk.b, walk.b.dim, pass.dtype, walk.b.dim / 64) &&
                    map(p.c, walk.c, keys, pass.dtype, panels) &&
                    full(p.g, walk.g, walk.g_strides, walk.decay_is_float);
  if (!good || !reversed || !walk.x) return good;
  return map(p.partner, walk.partner, keys, pass.dtype, panels) &&
         full(p.x, walk.x, walk.x_strides, walk.x_is_float) && map(p.x_low, walk.y, keys, pass.dtype, panels);
}

template <typename T>
int enqueue(const Walk &walk, const BackwardPass &pass, bool reversed, Stream stream) {
  Params p = {};
  p.walk = walk;
  return with_kernel<T>(walk.c.dim, walk.a.dim, reversed, walk.x_is_float && !walk.adds,
                        [&](auto kernel, auto layout, int heads) -> int {
                          if (!encode_maps(p, pass, reversed, heads)) return cudaErrorInvalidValue;
                          p.blocks = int32_t(ceil_div(walk.heads, heads)) * walk.row_tiles;
                          return launch_blocks(kernel, pass.num_runs * p.blocks, kThreads,
                                               layout.kBytes + layout.kAlignment, stream, p);
                        });
}

template <typename T>
int load() {
  for (const auto [rows, columns] : {int2{128, 128}, int2{128, 64}, int2{64, 64}})
    for (const bool reversed : {false, true})
      for (const bool plain : {false, true}) {
        const auto load_one = [](auto kernel, auto layout, int) {
          return load_kernel(kernel, layout.kBytes + layout.kAlignment);
        };
        if (const int error = with_kernel<T>(rows, columns, reversed, plain, load_one)) return error;
      }
  return cudaSuccess;
}

}  // namespace lasp::gpu::hopper::channel_backward
