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

// The next one, row by row.
__device__ __forceinline__ void prefetch_checkpoint(const Params &p, const Block<kTiled> &block,
                                                    const Steps &step) {
  const uint16_t *const from = block.checkpoint_of(p, step.chunk / kStretch - 1);
  const int32_t rows = 64 * block.panels(p.dim_k, block.k), bytes = 128 * block.panels(p.dim_v, block.v);
  for (int32_t row = threadIdx.x % 32; row < rows; row += 32)
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from + row * p.dim_v), "r"(bytes));
}

template <bool kGradient, int kMembers>
__device__ __forceinline__ void produce_tiles(const Params &p, const Block<kMembers> &block) {
#pragma unroll 1
  for (Steps step(block); !step.done(); step.next()) {
    const int32_t tiles = kGradient || step.back ? 4 : 3, tokens = block.tokens(step.chunk);
    const bool tail = tokens < kChunk;
    block.wait_empty(step.n);
    if (threadIdx.x % 32 == 0) {
      const uint32_t full = tail ? block.tail() : block.full(step.n);
      barrier_expect(full, tiles * Layout::kTile);
#pragma unroll 1
      for (int32_t i = 0; i < tiles; ++i)
        tma_load_panels(block.tile(step.n, Tile(i)), &p.tiles[i], full, block.begin + step.chunk * kChunk,
                        2 * (i == kV || i == kDo ? block.tile_v() : block.tile_k()),
                        kMembers > 1 && (i == kV || i == kK) ? block.head / kMembers : block.head, block.row,
                        step.back ? Keep::kBriefly : Keep::kNormal);
      // The walkers read the next checkpoint with ordinary loads.
      if (kMembers != kTiled && step.back && step.chunk == step.last && step.first() > 0)
        asm volatile(
            "cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(block.checkpoint_of(p, step.chunk / kStretch - 1)),
            "r"(kDim * kDim * 2));
    }
    __syncwarp();
    if constexpr (kMembers == kTiled)
      if (step.back && step.chunk == step.last && step.first() > 0) prefetch_checkpoint(p, block, step);
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

template <typename T, int kMembers>
__device__ __forceinline__ void produce_decays(const Params &p, const Block<kMembers> &block) {
  const uint32_t lane = threadIdx.x % 32;
  const bool by_head = p.decay == Decay::kHead, none = p.decay == Decay::kNone;
  const bool wide = p.decay_is_float || by_head;
  const int64_t begin =
      by_head ? block.head
              : block.row * p.g_strides.batch + block.begin * p.g_strides.token + block.head * p.g_strides.head;
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
    Decays &out = block.decays(step.n);
    reinterpret_cast<float2 *>(out.sum)[lane] = sums;
    reinterpret_cast<float2 *>(out.from_start)[lane] = {exp2_fast(sums.x), exp2_fast(sums.y)};
    reinterpret_cast<float2 *>(out.to_end)[lane] = {exp2_fast(total - sums.x), exp2_fast(total - sums.y)};
    if (lane == 0) out.total = factor;
    warp_arrive(block.full(step.n));
  }
}

}  // namespace lasp::gpu::hopper::fused
