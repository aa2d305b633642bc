// The two producer warps of a block of the backward kernel: one copies tiles, one computes decay factors.
#pragma once

#include "fused_backward_layout.cuh"

namespace lasp::gpu::hopper::fused {

// The steps of the walk, for warps that have few registers.
struct Steps {
  uint32_t n = 0;
  int32_t last, chunk;  // of the stretch; the step's
  bool back = false;
  template <int kMembers>
  __device__ __forceinline__ explicit Steps(const Block<kMembers> &block)
      : last(block.chunks - 1), chunk(first()) {}
  __device__ __forceinline__ int32_t first() const { return last & ~(kStretch - 1); }
  __device__ __forceinline__ bool done() const { return chunk < 0; }
  __device__ __forceinline__ void next() {
    ++n;
    if (!back) {
      back = chunk == last;
      chunk += !back;
    } else if (chunk > first()) {
      --chunk;
    } else {
      last = chunk - 1;
      chunk -= kStretch;
      back = false;
    }
  }
};

// Rows past the run's end are another sequence's, or anything: zero they add nothing.
__device__ __forceinline__ void clear_rows(uint32_t panel, int32_t tokens) {
  for (uint32_t at = tokens * 128 + threadIdx.x % 32 * 16; at < kPanel; at += 512)
    store_shared_16(panel + at, {0, 0, 0, 0});
}

// The state before a stretch, to where the walkers put rounded copies of others.
template <int kMembers>
__device__ __forceinline__ void load_checkpoint(const Params &p, const Block<kMembers> &block, int32_t stretch,
                                                uint32_t full) {
#pragma unroll
  for (int i = 0; i < kCheckpointBoxes<kMembers>; ++i) {
    const int32_t head = kMembers == kPaired ? i : 0, panel = kMembers == kPaired ? 0 : i;
    tma_load_box(block.copy(0) + i * kCheckpointBox<kMembers>, &p.checkpoints, full, kDim * block.tile_k(), 0,
                 block.head + head, block.checkpoint + stretch, Keep::kBriefly, kDim * block.tile_v() + 64 * panel);
  }
}

template <bool kGradient, int kMembers>
__device__ __forceinline__ void produce_tiles(const Params &p, const Block<kMembers> &block) {
  constexpr int kHeads = heads_of(kMembers), kLess = kMembers == kNarrow ? 2 : 0;  // panels of v and do
  int32_t shared[kHeads];  // heads of q and k; of grouped heads of v and k
  for (int i = 0; i < kHeads; ++i)
    shared[i] = kMembers > 1 ? block.head / kMembers : int32_t(uint32_t(block.head + i) / p.shared);
#pragma unroll 1
  for (Steps step(block); !step.done(); step.next()) {
    const int32_t tiles = kGradient || step.back ? 4 : 3, tokens = block.tokens(step.chunk);
    const bool tail = tokens < kChunk;
    block.wait_empty(step.n);
    if (threadIdx.x % 32 == 0) {
      const uint32_t full = tail ? block.tail() : block.full(step.n);
      // The walkers are done with the step before the last, so that nobody reads what the checkpoint replaces.
      const bool begins = !step.back && step.chunk == step.first();
      barrier_expect(full, (2 * tiles - kLess) * kPanel +
                               (begins ? kCheckpointBoxes<kMembers> * kCheckpointBox<kMembers> : 0));
      if (begins) load_checkpoint(p, block, step.chunk / kStretch, full);
#pragma unroll 1
      for (int32_t i = 0; i < tiles; ++i) {
        const bool of_v = i == kV || i == kDo, shares = kMembers > 1 ? i == kV || i == kK : !of_v;
        const int32_t first = of_v ? block.tile_v() : block.tile_k();
#pragma unroll
        for (int j = 0; j < (by_columns(kMembers) ? 2 : 1); ++j)
          tma_load_box(block.tile(step.n, Tile(i)) + j * kPanel, &p.tiles[i], full,
                       block.begin + step.chunk * kChunk, by_columns(kMembers) ? 0 : 2 * first,
                       shares ? shared[j % kHeads] : block.head + j % kHeads, block.row,
                       step.back ? Keep::kBriefly : Keep::kNormal, kMembers == kTiled ? kDim * first + 64 * j : 0);
      }
    }
    __syncwarp();
    if (!tail) {
      if (threadIdx.x % 32 > 0 && threadIdx.x % 32 < kWarpArrivals) barrier_arrive(block.full(step.n));
      continue;
    }
    wait_this_round(block.tail(), RingIndex<1>::of(step.back));  // forward, then back
#pragma unroll 1
    for (int32_t i = 0; i < 2 * tiles; ++i) clear_rows(block.tile(step.n, kV) + i * kPanel, tokens);
    fence_async_proxy();
    warp_arrive(block.full(step.n));
  }
}

// Of the head of a warpgroup, where these have heads of their own.
template <typename T, int kMembers>
__device__ __forceinline__ void produce_decays(const Params &p, const Block<kMembers> &block, uint32_t group) {
  const uint32_t lane = threadIdx.x % 32;
  const int32_t head = block.head_of(group);
  const bool by_head = p.decay == Decay::kHead, none = p.decay == Decay::kNone;
  const bool wide = p.decay_is_float || by_head;
  const int64_t begin =
      by_head ? head : block.row * p.g_strides.batch + block.begin * p.g_strides.token + head * p.g_strides.head;
  const char *const from = static_cast<const char *>(p.g) + begin * (wide ? 4 : 2);
  float compensation =
      0;  // of the gradient of the state, which goes through the whole run; the state begins anew in each stretch
#pragma unroll 1
  for (Steps step(block); !step.done(); step.next()) {
    // Log2 decay of two neighbouring tokens, 0 past the run's end.
    float g[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int32_t token = step.chunk * kChunk + 2 * lane + i;
      if (none || token >= block.length) continue;
      const int64_t at = by_head ? 0 : token * p.g_strides.token;
      g[i] = clamped_log2(wide ? *reinterpret_cast<const float *>(from + at * 4)
                               : float(*reinterpret_cast<const T *>(from + at * 2)));
    }
    float total;
    const float2 sums = running_sums({g[0], g[1]}, &total);
    const float factor = step.back ? state_decay(total, compensation) : exp2_fast(total);
    block.wait_empty(step.n);
    Decays &out = block.decays(step.n, group);
    reinterpret_cast<float2 *>(out.sum)[lane] = sums;
    reinterpret_cast<float2 *>(out.from_start)[lane] = {exp2_fast(sums.x), exp2_fast(sums.y)};
    reinterpret_cast<float2 *>(out.to_end)[lane] = {exp2_fast(total - sums.x), exp2_fast(total - sums.y)};
    if (lane == 0) out.total = factor;
    warp_arrive(block.full(step.n));
  }
}

}  // namespace lasp::gpu::hopper::fused
