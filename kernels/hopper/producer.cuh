// The two producer warps: CopyWarp brings a, b and c by TMA, DecayWarp computes the decay factors.
#pragma once

#include "layout.cuh"

namespace lasp::gpu::hopper {

// By a warp: rows of a tile of `row` bytes each, from `tokens` on.
__device__ __forceinline__ void clear_rows(uint32_t tile, int32_t tokens, int32_t row) {
  for (int at = tokens * row + int(threadIdx.x % 32) * 16; at < kChunk * row; at += 512)
    store_shared_16(tile + at, uint4{0, 0, 0, 0});
}

// Rows past the run's end are another sequence's, or anything: zero in b and c they add nothing. (A row of a
// touches its own row of y only, which is not stored.)
template <int kDim, int kSlice>
__device__ __forceinline__ void clear_rows(uint32_t stage, int32_t tokens) {
  using L = Layout<kDim, kSlice>;
  for (int panel = 0; panel < L::kPanels; ++panel) clear_rows(stage + L::kB + panel * kPanel, tokens, 128);
  clear_rows(stage + L::kC, tokens, kSlice * 2);
  fence_async_proxy();
  __syncwarp();
}

// The copy warp. The boxes of a and b are dealt out among the cluster's blocks; each goes to all of them.
template <int kDim, int kSlice>
class CopyWarp {
  using L = Layout<kDim, kSlice>;
  static constexpr int kBoxes = 2 * L::kPanels;

 public:
  __device__ __forceinline__ CopyWarp(const PassParams &p, const Block<kDim, kSlice> &block)
      : p_(p),
        block_(block),
        rank_(cluster_rank()),
        blocks_(cluster_size()),
        a_head_(int32_t(int64_t(block.head) * p.a_heads / p.heads)),
        b_head_(int32_t(int64_t(block.head) * p.b_heads / p.heads)),
        c_head_(int32_t(int64_t(block.head) * p.c_heads / p.heads)),
        first_(p.y ? 0 : L::kPanels) {}

  __device__ __forceinline__ void run() {
    const uint32_t lane = threadIdx.x % 32;
    RingIndex<L::kStages> ring;
    for (int32_t n = 0; n < block_.chunks; ++n, ring.next()) {
      const int32_t chunk = block_.chunk(p_, n), tokens = block_.tokens(chunk);
      const uint32_t stage = block_.stage(ring.stage), full = block_.full(ring.stage);
      const uint32_t barrier = tokens < kChunk ? block_.tail() : full;
      wait_round_before(block_.empty(ring.stage), ring);
      if (blocks_ > 1) {
        if (lane < blocks_) barrier_arrive_cluster(cluster_address(block_.free(ring.stage), lane));
        wait_this_round(block_.free(ring.stage), ring);
      }
      if (lane == 0) load(stage, barrier, int32_t(block_.run.begin) + chunk * kChunk);
      __syncwarp();
      if (tokens == kChunk) {
        if (lane > 0 && lane < kWarpArrivals) barrier_arrive(full);  // lane 0 has, with the bytes to come
        continue;
      }
      wait_this_round(barrier, RingIndex<1>());  // a run has one partial chunk at most
      clear_rows<kDim, kSlice>(stage, tokens);
      warp_arrive(full);
    }
  }

 private:
  __device__ __forceinline__ void load(uint32_t stage, uint32_t barrier, int32_t token) {
    const int32_t row = int32_t(block_.run.row);
    barrier_expect(barrier, (kBoxes - first_) * kPanel + L::kSliceTile);
#pragma unroll
    for (int box = 0; box < kBoxes; ++box) {
      if (box < first_ || (box & (blocks_ - 1)) != rank_) continue;
      const CUtensorMap *map = box < L::kPanels ? &p_.a : &p_.b;
      const int32_t column = box % L::kPanels * 64, head = box < L::kPanels ? a_head_ : b_head_;
      if (blocks_ == 1) {
        tma_load(stage + box * kPanel, map, barrier, column, token, head, row);
      } else {
        tma_load_multicast(stage + box * kPanel, map, barrier, column, token, head, row,
                           uint16_t((1 << blocks_) - 1));
      }
    }
    tma_load(stage + L::kC, &p_.c, barrier, block_.column, token, c_head_, row);
  }

  const PassParams &p_;
  const Block<kDim, kSlice> &block_;
  uint32_t rank_, blocks_;  // within the cluster; blocks_ is a power of two
  int32_t a_head_, b_head_, c_head_, first_;
};

// The decay warp: per chunk, the running sums of its log decays and the factors made of them. Reads kAhead chunks
// at once, and those while it works on the kAhead before.
template <typename T, bool kScalar, class Block>
class DecayWarp {
  using L = typename Block::L;
  static constexpr int kAhead = kScalar ? 4 : 1;

 public:
  __device__ __forceinline__ DecayWarp(const PassParams &p, const Block &block)
      : p_(p), block_(block), lane_(threadIdx.x % 32) {}

  __device__ __forceinline__ void run() {
    uint2 next[kAhead];
    load(next, 0);
    for (int32_t n = 0; n < block_.chunks; n += kAhead) {
      uint2 now[kAhead];
#pragma unroll
      for (int i = 0; i < kAhead; ++i) now[i] = next[i];
      load(next, n + kAhead);
#pragma unroll
      for (int i = 0; i < kAhead; ++i)
        if (n + i < block_.chunks) prepare(n + i, now[i]);
    }
  }

 private:
  // The first token of this lane's two, within the run.
  __device__ __forceinline__ int32_t token(int32_t n) const { return block_.chunk(p_, n) * kChunk + 2 * lane_; }

  // Raw, so that nothing waits for them: bits of two tokens' log decays in each of kAhead chunks.
  __device__ __forceinline__ void load(uint2 (&raw)[kAhead], int32_t n) const {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int32_t t = token(n + i);
      const bool here = n + i < block_.chunks;
      raw[i].x = here && t < block_.run.length ? load(t) : 0;
      raw[i].y = here && t + 1 < block_.run.length ? load(t + 1) : 0;
    }
  }
  __device__ __forceinline__ uint32_t load(int32_t t) const {
    if (p_.decay == Decay::kNone) return 0;
    if constexpr (!kScalar) return static_cast<const uint32_t *>(p_.g)[block_.head];
    const int64_t at = block_.run.row * p_.g_strides.batch + (block_.run.begin + t) * p_.g_strides.token +
                       block_.head * p_.g_strides.head;
    return p_.decay_is_float ? static_cast<const uint32_t *>(p_.g)[at] : static_cast<const uint16_t *>(p_.g)[at];
  }
  // Base 2. Zero bits are a log decay of 0: tokens past the run's end.
  __device__ __forceinline__ float decode(uint32_t raw) const {
    const float g = !kScalar || p_.decay_is_float ? __uint_as_float(raw) : unpack<T>(raw).x;
    return clamped_log2(g);
  }

  __device__ __forceinline__ void prepare(int32_t n, uint2 raw) {
    const float2 g = {decode(raw.x), decode(raw.y)};
    float total;
    const float2 sums = running_sums(g, &total);
    const float2 from_start = {exp2_fast(sums.x), exp2_fast(sums.y)};
    // Into the outgoing state tokens go by their decay to its nearest one, which then multiplies their float32 sum:
    // where that decay is tiny, 16 bits would not hold the products.
    const float nearest = p_.reversed ? __shfl_sync(~0u, sums.x, 0) : 0.0f;
    const float2 from_nearest = {exp2_fast(sums.x - nearest), exp2_fast(sums.y - nearest)};
    const float2 to_end = {exp2_fast(total - sums.x), exp2_fast(total - sums.y)};
    const float factor = state_decay(total, compensation_);
    wait_round_before(block_.empty(ring_.stage), ring_);
    ChunkDecay &out = block_.decay(ring_.stage);
    reinterpret_cast<float2 *>(out.sum)[lane_] = sums;
    reinterpret_cast<float2 *>(out.row)[lane_] = p_.reversed ? to_end : from_start;
    reinterpret_cast<float2 *>(out.write)[lane_] = p_.reversed ? from_nearest : to_end;
    if (lane_ == 0) {
      out.total = factor;
      out.nearest = exp2_fast(nearest);
    }
    warp_arrive(block_.full(ring_.stage));
    ring_.next();
  }

  const PassParams &p_;
  const Block &block_;
  const int32_t lane_;
  RingIndex<L::kStages> ring_;
  float compensation_ = 0;  // see state_decay
};

}  // namespace lasp::gpu::hopper
