// The warpgroup that computes dq: scores do v^T, masked and decayed, times k, and do times the state before the
// chunk.
#pragma once

#include "fused_backward_layout.cuh"

namespace lasp::gpu::hopper::fused {

template <typename T, bool kGradient>
class QueryGroup {
 public:
  __device__ __forceinline__ QueryGroup(const Params &p, const Block &block)
      : p_(p), block_(block), d_q_(block, p.d_q, p.d_q_strides), blocks_(cluster_size()) {}

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
      warp_arrive(block_.state_empty(block_.slot(0, i)));
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
    float y[16], own[2];
    block_.wait_decays(n);
    const Decays &decays = block_.decays(n);
    weights_.load(decays);
    const float from_start[2] = {p_.scale * decays.from_start[at_.row], p_.scale * decays.from_start[at_.row + 8]};
    barrier_wait(block_.state_full(slot), count & 1);
    wgmma_begin();
    multiply_state<T>(y, d_o.address, block_.state(slot));
    wgmma_commit();
    block_.finish_decays(n);
    uint32_t rounded[16];
    weigh_scores(rounded, own);
    barrier_wait(k.full, k.parity);
    barrier_wait(q.full, q.parity);
    SliceElements queries, keys;
    if constexpr (kGradient) queries.load(q.address, block_), keys.load(k.address, block_);
    wgmma_wait<0>(y);
    scale_rows(y, from_start);
    warp_arrive(block_.state_empty(slot));
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
    if constexpr (kGradient) {
      const float2 dots = queries.template dot<T>(y);
      block_.wait_parts(n);
      if (threadIdx.x % 4 == 0) block_.parts(n).a[at_.row] = dots.x, block_.parts(n).a[at_.row + 8] = dots.y;
      block_.finish_parts(n);
      keys.template add_to<T>(y, own);
    }
    d_q_.store(y, block_.tokens(chunk));
    if constexpr (!kLast) wait_scores(n + 1);
  }
  static __device__ __forceinline__ void scale_rows(float (&y)[16], const float (&factor)[2]) {
#pragma unroll
    for (int i = 0; i < 16; ++i) y[i] *= factor[i / 2 % 2];
  }

  __device__ __forceinline__ void weigh_scores(uint32_t (&rounded)[16], float (&own)[2]) {
#pragma unroll
    for (int block = 0; block < 4; ++block) {
      const bool any = weights_.each(block, [&](int i, float w) { scores_[i] *= w; });
      if constexpr (kGradient) weights_.take_own(block, scores_, own);
#pragma unroll
      for (int i = 4 * block; i < 4 * block + 4; ++i)
        rounded[i] = any ? Pair<T>::pack(scores_[2 * i], scores_[2 * i + 1]) : 0;
    }
    if constexpr (kGradient) weights_.hand_own(own);
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
