// The four warps that feed a block of the fused backward kernel and finish its decay gradient: one copies the
// chunks that are walked through, one what the states of the segment ahead need, one works out decay factors, and
// one gathers.
#pragma once

#include "fused_backward_layout.cuh"

namespace lasp::gpu::hopper::fused {

// The boxes are dealt out among the cluster's blocks; each goes to all of them.
__device__ __forceinline__ void load_tile(const CUtensorMap &map, uint32_t to, uint32_t barrier, uint32_t first_box,
                                          int32_t token, int32_t head, int32_t row, uint32_t rank,
                                          uint32_t blocks) {
  barrier_expect(barrier, Layout::kTile);
#pragma unroll
  for (uint32_t box = 0; box < 2; ++box) {
    if ((first_box + box) % blocks != rank) continue;
    if (blocks == 1) {
      tma_load(to + box * kPanel, &map, barrier, int32_t(box * 64), token, head, row);
    } else {
      tma_load_multicast(to + box * kPanel, &map, barrier, int32_t(box * 64), token, head, row,
                         uint16_t((1 << blocks) - 1));
    }
  }
}

// Rows past the run's end are another sequence's, or anything: zero they add nothing.
__device__ __forceinline__ void clear_rows(uint32_t tile, int32_t tokens) {
  for (int panel = 0; panel < 2; ++panel)
    for (int at = tokens * 128 + int(threadIdx.x % 32) * 16; at < kPanel; at += 512)
      store_shared_16(tile + panel * kPanel + at, {0, 0, 0, 0});
}

__device__ __forceinline__ void copy_tiles(const Params &p, const Block &block) {
  const uint32_t rank = cluster_rank(), blocks = cluster_size();
  const bool leader = threadIdx.x % 32 == 0;
  for (int32_t n = 0; n < block.chunks; ++n) {
    const int32_t chunk = block.chunk(n), tokens = block.tokens(chunk);
    const bool tail = tokens < kChunk;
#pragma unroll 1
    for (int i = 0; i < 4; ++i) {
      const RingTile tile = block.tile(n, Tile(i));
      barrier_wait(tile.empty, tile.parity ^ 1);
      if (leader)
        load_tile(p.tiles[i], tile.address, tail ? block.tail() : tile.full, 2 * i,
                  int32_t(block.run.begin) + chunk * kChunk, block.head, int32_t(block.run.row), rank, blocks);
      __syncwarp();
      if (!tail && threadIdx.x % 32 > 0 && threadIdx.x % 32 < kWarpArrivals) barrier_arrive(tile.full);
    }
    if (!tail) continue;
    barrier_wait(block.tail(), 0);
    for (int i = 0; i < 4; ++i) clear_rows(block.tile(n, Tile(i)).address, tokens);
    fence_async_proxy();
    for (int i = 0; i < 4; ++i) warp_arrive(block.tile(n, Tile(i)).full);
  }
}

// Log2 decay of two neighbouring tokens, 0 past the run's end.
template <typename T>
__device__ __forceinline__ float2 load_decay(const Params &p, const Block &block, int32_t token) {
  const Run &run = block.run;
  int64_t at =
      run.row * p.g_strides.batch + (run.begin + token) * p.g_strides.token + block.head * p.g_strides.head;
  const int64_t step = p.decay == Decay::kHead ? 0 : p.g_strides.token;
  if (p.decay == Decay::kHead) at = block.head;
  float g[2] = {0, 0};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (token + i >= run.length || p.decay == Decay::kNone) continue;
    const float x = p.decay_is_float || p.decay == Decay::kHead ? static_cast<const float *>(p.g)[at + i * step]
                                                                : float(static_cast<const T *>(p.g)[at + i * step]);
    g[i] = clamped_log2(x);
  }
  return {g[0], g[1]};
}

// Inclusive running sums of a chunk, two tokens a lane, and their total.
__device__ __forceinline__ float2 running_sums(float2 g, float *total) {
  const int32_t lane = threadIdx.x % 32;
  float sum = g.x + g.y;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const float before = __shfl_up_sync(~0u, sum, step);
    if (lane >= step) sum += before;
  }
  *total = __shfl_sync(~0u, sum, 31);
  return {sum - g.y, sum};
}

// Decay factors, of the chunks that are walked through or (`ahead`) of those that the states need beyond the
// checkpoints: all but the last of each segment, which are copied, too. One piece of code, so that two warps share
// its instructions.
template <typename T>
__device__ __forceinline__ void feed_decays(const Params &p, const Block &block, bool ahead) {
  const uint32_t rank = cluster_rank(), blocks = cluster_size(), lane = threadIdx.x % 32;
  int32_t chunk = ahead ? (block.segments - 1) * kSegment : block.chunks - 1;
#pragma unroll 1
  for (int32_t n = 0; chunk >= 0;) {
    if (ahead && chunk + 1 == min(block.chunks, (chunk / kSegment + 1) * kSegment)) {  // the last of its segment
      chunk = (chunk / kSegment - 1) * kSegment;
      continue;
    }
    float total;
    const float2 sums = running_sums(load_decay<T>(p, block, chunk * kChunk + 2 * int32_t(lane)), &total);
    const uint32_t full = ahead ? block.ahead_full() : block.decays_full(n);
    barrier_wait(ahead ? block.ahead_empty() : block.decays_empty(n), ((ahead ? n : n / 2) & 1) ^ 1);
    if (ahead && lane == 0) {
      const int32_t token = int32_t(block.run.begin) + chunk * kChunk, row = int32_t(block.run.row);
      load_tile(p.tiles[kV], block.base + Layout::kAhead, full, 0, token, block.head, row, rank, blocks);
      barrier_expect(full, Layout::kSliceTile);
      tma_load(block.base + Layout::kAheadK, &p.k_slice, full, block.column, token, block.head, row);
    }
    Decays &out = block.decays(n);
    if (!ahead) {
      reinterpret_cast<float2 *>(out.sum)[lane] = sums;
      reinterpret_cast<float2 *>(out.scaled_sum)[lane] = {sums.x + p.log2_scale, sums.y + p.log2_scale};
      reinterpret_cast<float2 *>(out.from_start)[lane] = {exp2_fast(sums.x), exp2_fast(sums.y)};
    }
    float *const to_end = ahead ? block.ahead_decays().to_end : out.to_end;
    reinterpret_cast<float2 *>(to_end)[lane] = {exp2_fast(total - sums.x), exp2_fast(total - sums.y)};
    if (lane == 0) (ahead ? block.ahead_decays().total : out.total) = exp2_fast(total);
    warp_arrive(full);
    ++n;
    chunk += ahead ? 1 : -1;
  }
}

// With X = Lambda <S_0, dS_E> and the sums A = q . dq, B (k . dk from the gradient after the chunk) and C (the rest
// of k . dk), A and C without a token's pair with itself: d_g[t] = X + sum_{i >= t} (A - C)_i + sum_{j < t} B_j.
// Pairs of tokens that are both at or after t cancel: they are the same rounded score times the same dot product.
__device__ __forceinline__ void gather_decay_gradient(const Params &p, const Block &block) {
  const int32_t lane = threadIdx.x % 32;
  for (int32_t n = 0; n < block.chunks; ++n) {
    const int32_t chunk = block.chunk(n);
    barrier_wait(block.parts_full(n), n / 2 & 1);
    const Parts &in = block.parts(n);
    const float2 a = reinterpret_cast<const float2 *>(in.a)[lane], b = reinterpret_cast<const float2 *>(in.b)[lane],
                 c = reinterpret_cast<const float2 *>(in.c)[lane], after = {a.x - c.x, a.y - c.y};
    const float through = in.x[0] + in.x[1] + in.x[2] + in.x[3];
    warp_arrive(block.parts_empty(n));
    float later = after.x + after.y, earlier = b.x + b.y;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const float down = __shfl_down_sync(~0u, later, step), up = __shfl_up_sync(~0u, earlier, step);
      if (lane + step < 32) later += down;
      if (lane >= step) earlier += up;
    }
    earlier = __shfl_up_sync(~0u, earlier, 1);
    later = __shfl_down_sync(~0u, later, 1);
    const float before = lane == 0 ? 0.0f : earlier, last = (lane == 31 ? 0.0f : later) + after.y;
    const int32_t tokens = block.tokens(chunk);
    float *const to = p.parts + ((block.slice * p.batch + block.run.row) * p.heads + block.head) * p.tokens +
                      block.run.begin + int64_t(chunk) * kChunk + 2 * lane;
    if (2 * lane < tokens) to[0] = through + (last + after.x) + before;
    if (2 * lane + 1 < tokens) to[1] = through + last + (before + b.x);
  }
}

}  // namespace lasp::gpu::hopper::fused
