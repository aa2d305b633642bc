// The kernel of the backward walks with per-channel decay (launch.h, ChannelBackward; the formulas are in
// channel_walk.cuh): a block walks one run of one head in chunks of 16 tokens, forward for dq or reversed for dk
// and d_g.
//
//   each warp   16 channels, rows of the state [K, V], as float32 accumulators, and all that belongs to them
//   two warps   in turn: also the scores of the next chunk, eight columns each
//   all         the copies of a chunk, kStages - 1 chunks ahead
//
// Barriers:
//
//   name            arrives and waits       protects
//   __syncthreads   all threads, once a     the next chunk in its stage and this one's scores, until they are
//                   chunk                   there; the stage of the chunk before, until all have read it
//   groups of       each thread, its own    a chunk in its stage: waited for before the __syncthreads of the chunk
//   cp.async                                before
//   __syncwarp      a warp                  what its lanes hand each other: y on its way out, <S, dS> by channel
//   __any_sync      a warp                  L by channel, until all its lanes have read it
//
// Between two __syncthreads:
//
//   two warps    | scores of n + 1 | step n: state, y, d_g |
//   the others   | step n: state, y, d_g                   |
//   copies       | chunks n + 2 .. n + kStages - 1 on their way |
#pragma once

#include "channel_walk.cuh"

namespace lasp::gpu::mma::channel {

template <int kRows, int kColumns, bool kReversed>
__device__ __forceinline__ void fill_sources(Source *to, const Walk &p, int64_t index, int64_t head, int64_t tile) {
  const Run run = p.runs[index];
  const int64_t channel = tile * kRows, channels = int64_t{p.row_tiles} * kRows;  // its first; of a head
  const auto source = [&](const void *data, const Strides &strides, int64_t of_head, int64_t first, int bytes) {
    return Source{static_cast<char *>(const_cast<void *>(data)) +
                      bytes * (offset_of(strides, run.row, run.begin, of_head) + first),
                  uint32_t(bytes * strides.token), 0};
  };
  const auto tensor = [&](const Tensor &t, int64_t first) {
    return source(t.data, t.strides, head * t.heads / p.heads, first, 2);
  };
  to[kA] = tensor(p.a, 0), to[kB] = tensor(p.b, 0), to[kC] = tensor(p.c, channel), to[kY] = tensor(p.y, channel);
  to[kG] = source(p.g, p.g_strides, head, channel, p.decay_is_float ? 4 : 2);
  to[kX] = source(p.x, p.x_strides, head, channel, p.x_is_float ? 4 : 2);
  if (kReversed || !p.x_is_float) to[kPartner] = tensor(p.partner, channel);
  to[kEnds] = source(p.ends + (index * p.heads + head) * channels, {}, 0, channel, 4);
  if (!kReversed && p.far_state)
    to[kFar] = source(p.far_state + (p.far_runs[index].state * p.heads + head) * p.state_size, {}, 0,
                      channel * p.state_row, 4);
}

// Blocks of 256 threads to a multiprocessor, and of 128. Where its shared memory holds but one of the former, that
// may have all registers; 8.0 needs a few more of them than four of the latter leave. With 128 columns its shared
// memory holds half as many of the latter.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 800
constexpr int kWideBlocks = 1, kNarrowBlocks = 3;
#else
constexpr int kWideBlocks = 2, kNarrowBlocks = 4;
#endif
template <int kRows, int kColumns>
constexpr int kBlocks = kRows == 128      ? kWideBlocks
                        : kColumns == 128 ? kNarrowBlocks / 2
                                          : kNarrowBlocks;

template <typename T, int kRows, int kColumns, bool kReversed, bool kPlain>
__global__ void __launch_bounds__(2 * kRows, kBlocks<kRows, kColumns>)
    channel_walk_kernel(int64_t first, const __grid_constant__ Walk p) {
  using L = Layout<kRows, kColumns, kReversed>;
  extern __shared__ __align__(16) unsigned char memory[];
  const int64_t block = first + blockIdx.x, item = block / p.row_tiles, tile = block % p.row_tiles;
  const int64_t head = item % p.heads, index = item / p.heads;
  if (p.runs[index].length == 0) return;
  Source *const tensors = reinterpret_cast<Source *>(memory);
  if (threadIdx.x == 0) fill_sources<kRows, kColumns, kReversed>(tensors, p, index, head, tile);
  __syncthreads();

  Walker<T, kRows, kColumns, kReversed, kPlain> walker(p, memory);
  const int32_t length = p.runs[index].length;
  constexpr int kStep = kReversed ? -1 : 1;
  int chunk = kReversed ? (length - 1) / kChunk : 0;
  const auto there = [&](int its_chunk) { return kReversed ? its_chunk >= 0 : its_chunk * kChunk < length; };
#pragma unroll 1
  for (int n = 0; n < L::kStages - 1; ++n) walker.load(tensors, n, chunk + n * kStep, length);
  walker.read_state(p.runs[index].state, head, tile);
#pragma unroll
  for (int h = 0; h < 2; ++h) walker.write_float(walker.shared + L::kLeft + 4 * walker.channel() + 32 * h, 0);
  if (kReversed && p.x) {
#pragma unroll
    for (int h = 0; h < 2; ++h)
      walker.write_float(walker.shared + L::kBoundary + 4 * walker.channel() + 32 * h,
                         walker.adds() ? 0.0f : walker.end(tensors)[8 * h]);
  }
  copies_wait<0>();
  __syncthreads();
  if (walker.warp < 2) walker.score(0, chunk % 2, walker.warp);
#pragma unroll 1
  for (int here = 0; there(chunk); chunk += kStep) {
    // The next chunk is there, and scored while this one is walked through; the stage of the one before is free.
    copies_wait<L::kStages - 3>();
    __syncthreads();
    const int next = here + 1 == L::kStages ? 0 : here + 1, free = here == 0 ? L::kStages - 1 : here - 1;
    walker.load(tensors, free, chunk + (L::kStages - 1) * kStep, length);
    const int half = walker.warp - chunk % (walker.kWarps / 2) * 2;
    if (there(chunk + kStep) && (half == 0 || half == 1)) walker.score(next, (chunk + 1) % 2, half);
    walker.step(tensors, here, chunk % 2, chunk, length);
    here = next;
  }
  copies_wait<0>();
  if (!kReversed && p.x) walker.write_ends(tensors);
}

}  // namespace lasp::gpu::mma::channel
