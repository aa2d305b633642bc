// The linear pass by wgmma where decay is per channel and a channel is a row of the state: outputs and the gradient
// of v (launch.h, LinearPass). A block walks the chunks of 32 tokens of one run. It owns 128 columns of y and of
// the state R of one head or, of 64 channels, two units of 64 columns (channel_layout.cuh). With D(j, i) the decay
// from token j to token i, D(i) that from the chunk's pivot, diagonals that act on the rows of R:
//
//   y_i = scale (R^T D(i) a_i  +  sum_j P_ij c_j)         P_ij = a_i . D(j, i) b_j  where j is not behind i in the
//   walk R   = D(end) (R  +  sum_j D(j) b_j c_j^T)
//
// Warpgroups:
//
//   walkers 0, 1    64 columns of y and R each (channel_walk.cuh), and the copies in turns (channel_load.cuh)
//   scalers 0, 1    the even, the odd chunks: D a, D b, P and the state's decay (channel_scale.cuh)
//
// Barriers. Arrivals are warps, or one lane with the bytes to come. [s] is one of kStages stages:
//
//   name       arrives                         count  waits             protects
//   full[s]    who copies, and its bytes       1      scalers, walkers  a, b, c and g, until they are there
//   ready[s]   the scalers whose turn it is    4      walkers           what they made of these, until it is whole
//   empty[s]   walkers                         8      who copies        all of the stage, until both have read it
//   chain[i]   scalers i                       4      the other ones    decay that the next chunk takes over
//   1 + i      scalers i (named barrier)       128    the same          what they hand each other within a chunk
//
// Time runs to the right:
//
//   copies      | chunks n+3, n+4 ..
//   scalers 0   | n+1                 | n+3
//   scalers 1   | .. n     | n+2                 |
//   walkers     | n-1      | n        | n+1      |
#include "channel_pass.h"

#include <cuda_runtime_api.h>

#include <algorithm>

#include "../device.cuh"
#include "channel_load.cuh"
#include "channel_scale.cuh"
#include "channel_walk.cuh"
#include "tensor_map.h"

namespace lasp::gpu::hopper {
namespace channel {
namespace {

template <typename T, int kHeads>
__global__ void __launch_bounds__(kThreads, 1) channel_pass_kernel(const __grid_constant__ Params p) {
  extern __shared__ unsigned char shared[];
  using L = Layout<kHeads>;
  const Block<kHeads> block(p, shared);
  if (block.chunks == 0) return;
  const int group = __shfl_sync(~0u, int(threadIdx.x / 128), 0);
  if (threadIdx.x == 0) {
    for (uint32_t s = 0; s < L::kStages; ++s) {
      barrier_init(block.full(s), 1);
      barrier_init(block.ready(s), 4 * kWarpArrivals);
      barrier_init(block.empty(s), 4 * kWalkers * kWarpArrivals);
    }
    for (uint32_t i = 0; i < 2; ++i) barrier_init(block.chain(i), 4 * kWarpArrivals);
    barrier_init_fence();
    put_origins(p, block);
    for (int32_t n = 0; n < min(L::kStages, block.chunks); ++n) load_chunk(p, block, n);
  }
  __syncthreads();
  if (group < kWalkers) {
    take_registers<kWalkerRegisters>();
    Walker<T, kHeads>(p, block, group).run();
  } else {
    give_registers<kScalerRegisters>();
    Scaler<T, kHeads>(p, block, group - kWalkers).run();
  }
}

using Kernel = void (*)(Params);
template <int kHeads>
Kernel kernel_for(DType type) {
  return type == DType::kBFloat16 ? channel_pass_kernel<__nv_bfloat16, kHeads>
                                  : channel_pass_kernel<__half, kHeads>;
}
template <int kHeads>
constexpr int kBytes = Layout<kHeads>::kBytes + Layout<kHeads>::kAlignment;

// As many rows of the state as a head has channels in a tile, from `first` on.
template <int kHeads>
int launch_rows(const LinearPass &pass, int32_t first, Stream stream) {
  constexpr int32_t kRows = Layout<kHeads>::kWidth;
  const auto rows_of = [&](Tensor t) {
    t.dim = kRows, t.data = static_cast<uint16_t *>(t.data) + first;
    return t;
  };
  const int64_t decay_bytes = pass.decay_dtype == DType::kFloat32 ? 4 : 2;
  const Tensor g = {static_cast<char *>(const_cast<void *>(pass.g)) + first * decay_bytes, pass.g_strides,
                    pass.heads, kRows};
  Params p = {};
  const auto map = [&](CUtensorMap &to, const Tensor &t, uint32_t panels) {
    return encode_panels_map(to, t, pass.batch, pass.tokens, pass.dtype, kTokens, panels);
  };
  if (!map(p.a, rows_of(pass.a), kRows / 64) || !map(p.b, rows_of(pass.b), kRows / 64) ||
      !map(p.c, pass.c, kWalkers / kHeads) ||
      !encode_decay_map(p.g, g, pass.batch, pass.tokens, pass.decay_dtype, kTokens))
    return cudaErrorInvalidValue;
  const int64_t state = int64_t{first} * pass.y.dim;
  p.y = pass.y.data;
  p.runs = pass.runs;
  p.state_in = pass.state_in ? pass.state_in + state : nullptr;
  p.state_out = pass.state_out ? pass.state_out + state : nullptr;
  p.edge_state = pass.edge_state ? pass.edge_state + state : nullptr;
  p.y_strides = pass.y.strides;
  p.state_size = int64_t{pass.a.dim} * pass.y.dim;
  p.heads = pass.heads;
  p.a_heads = pass.a.heads, p.b_heads = pass.b.heads, p.c_heads = pass.c.heads;
  p.y_dim = pass.y.dim;
  constexpr int32_t kOfHead = kWalkers / kHeads;  // units of a block that are of one head
  p.units = int32_t(ceil_div(pass.y.dim, kWalkerColumns * kOfHead)) * kOfHead;
  p.blocks = int32_t(ceil_div(int64_t{pass.heads} * p.units, kWalkers));
  p.scale = pass.scale, p.in_scale = pass.in_scale, p.out_scale = pass.out_scale;
  p.decay_dtype = pass.decay_dtype;
  p.reversed = pass.reversed;
  p.adds = first > 0;
  kernel_for<kHeads>(pass.dtype)<<<unsigned(pass.num_runs * p.blocks), kThreads, kBytes<kHeads>, stream>>>(p);
  return cudaGetLastError();
}

}  // namespace
}  // namespace channel

const char *channel_refusal(const LinearPass &pass) {
  if (pass.state_transposed || !pass.y.data) return "the Hopper kernel of decay per channel is for o and dv alone";
  if (pass.checkpoints) return "the Hopper kernel of decay per channel keeps no checkpoints";
  if (pass.filter != RunFilter::kAll) return "the Hopper kernel of decay per channel takes all runs at once";
  if (pass.y_float32 || pass.y_adds) return "the Hopper kernel writes results of 16 bits, over what is there";
  if (pass.tokens > INT32_MAX - channel::kTokens || pass.batch > INT32_MAX)
    return "too many tokens for the tensor-core kernel's coordinates";
  if (pass.num_runs > INT32_MAX / (int64_t{pass.heads} * channel_blocks_of(pass)))
    return "too many runs for one launch of the tensor-core kernel";
  const auto fits = [&](const Tensor &t) { return tensor_map_fits(t, pass.batch, pass.tokens); };
  if (!fits(pass.a) || !fits(pass.b) || !fits(pass.c) || !fits(pass.y))
    return "the tensor-core kernel wants tensors and strides that are multiples of 16 bytes";
  if (!fits({const_cast<void *>(pass.g), pass.g_strides, pass.heads, pass.a.dim}))
    return "the tensor-core kernel wants a decay per channel and strides that are multiples of 16 bytes";
  return nullptr;
}

int32_t channel_blocks_of(const LinearPass &pass) {
  return int32_t(ceil_div(pass.y.dim, channel::kWalkers * channel::kWalkerColumns));
}

int64_t channel_shared_bytes(int32_t k) { return k == 64 ? channel::kBytes<2> : channel::kBytes<1>; }

// y is a sum over rows of the state: each further launch adds its own to what is there.
int launch_channel_pass(const LinearPass &pass, Stream stream) {
  if (pass.a.dim % 64 || pass.y.dim % channel::kWalkerColumns) return cudaErrorInvalidValue;
  int32_t first = 0;
  for (; first + channel::kDim <= pass.a.dim; first += channel::kDim)
    if (const int error = channel::launch_rows<1>(pass, first, stream)) return error;
  return first < pass.a.dim ? channel::launch_rows<2>(pass, first, stream) : cudaSuccess;
}

int load_channel_kernels() {
  for (const DType type : {DType::kBFloat16, DType::kFloat16})
    for (const int error : {load_kernel(channel::kernel_for<1>(type), channel::kBytes<1>),
                            load_kernel(channel::kernel_for<2>(type), channel::kBytes<2>)})
      if (error) return error;
  return cudaSuccess;
}

}  // namespace lasp::gpu::hopper
