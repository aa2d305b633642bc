// The warpgroup that computes dq: scores do v^T, masked and decayed, times k, and do times the state before the
// chunk. With scores q k^T it also has what pairs of tokens add to the gradient of the decay.
#pragma once

#include "fused_backward_layout.cuh"

namespace lasp::gpu::hopper::fused {

template <typename T, bool kGradient>
class QueryGroup {
 public:
  __device__ __forceinline__ QueryGroup(const Params &p, const Block &block)
      : p_(p), block_(block), d_q_(block, p.d_q, p.d_q_strides), blocks_(cluster_size()), weights_(p.log2_scale) {}

  __device__ __forceinline__ void run() {
    skip_missing();
    issue_scores(0);
    wait_scores(0);
    const int32_t last = block_.chunks - 1;
    for (int32_t n = 0; n < last; ++n) step<false>(n);
    step<true>(last);
  }

 private:
  // The chunks that the last segment is short of: no state, nothing to do, but the slots' turns go on.
  __device__ __forceinline__ void skip_missing() {
    for (int32_t i = kSegment - 1; i > (block_.chunks - 1) % kSegment; --i) {
      barrier_wait(block_.state_full(block_.slot(0, i)), 0);
      Block::arrive_warp(block_.state_empty(block_.slot(0, i)));
    }
  }
  __device__ __forceinline__ void issue_scores(int32_t n) {
    const RingTile v = block_.tile(n, kV), d_o = block_.tile(n, kDo);
    barrier_wait(v.full, v.parity);
    barrier_wait(d_o.full, d_o.parity);
    multiply_scores<T>(scores_, d_o.address, v.address);
  }

  __device__ __forceinline__ void wait_scores(int32_t n) {
    wgmma_wait<0>(scores_);
    Block::release(block_.tile(n, kV).empty, blocks_);
  }

  // The scores of step n are there when it begins; those of the next are found while its results are stored.
  template <bool kLast>
  __device__ __forceinline__ void step(int32_t n) {
    const int32_t chunk = block_.chunk(n), count = block_.count(chunk);
    const uint32_t slot = block_.slot(count, chunk % kSegment);
    const RingTile d_o = block_.tile(n, kDo), k = block_.tile(n, kK), q = block_.tile(n, kQ);
    float y[16], keys[16];
    block_.wait_decays(n);
    const Decays &decays = block_.decays(n);
    weights_.load(decays.sum);
    const float from_start[2] = {p_.scale * decays.from_start[at_.row], p_.scale * decays.from_start[at_.row + 8]};
    barrier_wait(block_.state_full(slot), count & 1);
    wgmma_begin();
    multiply_state<T>(y, d_o.address, block_.state(slot));
    wgmma_commit();
    block_.finish_decays(n);
    uint32_t rounded[16];
    weigh_scores(rounded);
    barrier_wait(k.full, k.parity);
    barrier_wait(q.full, q.parity);
    if constexpr (kGradient) {
      issue_keys(keys, q.address, k.address);
      SliceElements queries;
      queries.load(q.address, block_);
      wgmma_wait<1>(y);
      scale_rows(y, from_start);
      const float2 dots = queries.template dot<T>(y);
      wgmma_wait<0>(keys);
      block_.wait_parts(n);
      sum_pairs(keys, dots, block_.parts(n));
      block_.finish_parts(n);
    } else {
      wgmma_wait<0>(y);
      scale_rows(y, from_start);
    }
    Block::arrive_warp(block_.state_empty(slot));
    Block::release(d_o.empty, blocks_);
    Block::release(q.empty, blocks_);
    wgmma_begin();
    multiply_slice<T>(y, rounded, block_.slice_descriptor(k.address));
    wgmma_commit();
    if constexpr (!kLast) {
      issue_scores(n + 1);
      wgmma_wait<1>(y);
    } else {
      wgmma_wait<0>(y);
    }
    Block::release(k.empty, blocks_);
    d_q_.store(y, block_.tokens(chunk));
    if constexpr (!kLast) wait_scores(n + 1);
  }
  static __device__ __forceinline__ void scale_rows(float (&y)[16], const float (&factor)[2]) {
#pragma unroll
    for (int i = 0; i < 16; ++i) y[i] *= factor[i / 2 % 2];
  }

  // q k^T for the 32 of the chunk's keys that hold this slice's quarter.
  __device__ __forceinline__ void issue_keys(float (&keys)[16], uint32_t q_tile, uint32_t k_tile) {
    const uint64_t a = tile_descriptor<128>(q_tile),
                   b = tile_descriptor<128>(k_tile + uint32_t(block_.slice / 2) * 4096);
    wgmma_begin();
#pragma unroll
    for (int k = 0; k < kDim / 16; ++k) {
      const uint32_t step = k / 4 * kPanel + k % 4 * 32;
      wgmma<T, false, false>(keys, advance(a, step), advance(b, step), k > 0);
    }
    wgmma_commit();
  }

  __device__ __forceinline__ void weigh_scores(uint32_t (&rounded)[16]) {
#pragma unroll
    for (int block = 0; block < 4; ++block) {
      const bool any = weights_.each(block, [&](int i, float w) { scores_[i] *= w; });
#pragma unroll
      for (int i = 4 * block; i < 4 * block + 4; ++i)
        rounded[i] = any ? Pair<T>::pack(scores_[2 * i], scores_[2 * i + 1]) : 0;
    }
  }

  // The product of both scores of a pair is what it adds to the gradient of all decays between its tokens. A block
  // sums the pairs of a quarter of the earlier tokens: by the later token, on top of `a`, and by the earlier one.
  __device__ __forceinline__ void sum_pairs(const float (&keys)[16], float2 a, Parts &parts) {
    float later[2] = {0, 0}, earlier[2][2] = {{0, 0}, {0, 0}};
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      if (j / 2 != block_.slice || j / 2 > at_.warp) continue;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int32_t row = at_.row + 8 * (i / 2), column = 8 * j + at_.column + i % 2;
        const float pair = column < row ? scores_[4 * j + i] * keys[4 * (j % 4) + i] : 0.0f;
        later[i / 2] += pair;
        earlier[j % 2][i % 2] += pair;
      }
    }
    later[0] = add_quad(later[0]), later[1] = add_quad(later[1]);
    if (threadIdx.x % 4 == 0) parts.a[at_.row] = a.x + later[0], parts.a[at_.row + 8] = a.y + later[1];
#pragma unroll
    for (int step = 4; step < 32; step *= 2)
#pragma unroll
      for (int i = 0; i < 4; ++i) earlier[i / 2][i % 2] += __shfl_xor_sync(~0u, earlier[i / 2][i % 2], step);
    if (threadIdx.x % 32 < 4) {
#pragma unroll
      for (int i = 0; i < 4; ++i) parts.c[at_.warp][8 * (i / 2) + at_.column + i % 2] = earlier[i / 2][i % 2];
    }
  }

  const Params &p_;
  const Block &block_;
  SliceStore<T> d_q_;
  const uint32_t blocks_;
  const Place at_;
  Weights<false> weights_;
  float scores_[32];
};

}  // namespace lasp::gpu::hopper::fused
