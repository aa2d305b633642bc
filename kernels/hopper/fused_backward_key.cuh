// The warpgroup that computes dk and dv: scores v do^T and k q^T, masked and decayed, times q and do, and v and k
// times the gradient of the state after the chunk.
#pragma once

#include "fused_backward_layout.cuh"

namespace lasp::gpu::hopper::fused {

template <typename T, bool kGradient>
class KeyGroup {
 public:
  __device__ __forceinline__ KeyGroup(const Params &p, const Block &block)
      : p_(p),
        block_(block),
        d_k_(block, p.d_k, p.d_k_strides),
        d_v_(block, p.d_v, p.d_v_strides),
        blocks_(cluster_size()) {}

  __device__ __forceinline__ void run() {
    issue_from_v(0);
    issue_from_k(0);
    wait_scores();
    const int32_t last = block_.chunks - 1;
    for (int32_t n = 0; n < last; ++n) step<false>(n);
    step<true>(last);
  }

 private:
  __device__ __forceinline__ void issue_from_v(int32_t n) {
    const RingTile v = block_.tile(n, kV), d_o = block_.tile(n, kDo);
    barrier_wait(v.full, v.parity);
    barrier_wait(d_o.full, d_o.parity);
    multiply_scores<T>(from_v_, v.address, d_o.address);
  }
  __device__ __forceinline__ void issue_from_k(int32_t n) {
    const RingTile k = block_.tile(n, kK), q = block_.tile(n, kQ);
    barrier_wait(k.full, k.parity);
    barrier_wait(q.full, q.parity);
    multiply_scores<T>(from_k_, k.address, q.address);
  }

  __device__ __forceinline__ void wait_scores() {
    wgmma_wait<0>(from_v_);
    wgmma_wait<0>(from_k_);
  }

  // The scores of step n are there when it begins; those of the next are found while its results are stored.
  template <bool kLast>
  __device__ __forceinline__ void step(int32_t n) {
    const RingTile v = block_.tile(n, kV), d_o = block_.tile(n, kDo), k = block_.tile(n, kK),
                   q = block_.tile(n, kQ);
    const int32_t tokens = block_.tokens(block_.chunk(n));
    float d_k[16], d_v[16];
    block_.wait_decays(n);
    const Decays &decays = block_.decays(n);
    weights_.load(decays);
    const float to_end[2] = {p_.scale * decays.to_end[at_.row], p_.scale * decays.to_end[at_.row + 8]};
    barrier_wait(block_.gradient_full(), n & 1);
    wgmma_begin();
    multiply_state<T>(d_k, v.address, block_.base + Layout::kGradientT);
    multiply_state<T>(d_v, k.address, block_.base + Layout::kGradient);
    wgmma_commit();
    block_.finish_decays(n);
    uint32_t rounded_v[16], rounded_k[16];
    float own[2];
    weigh_scores(rounded_v, rounded_k, own);
    SliceElements keys, queries;
    if constexpr (kGradient) keys.load(k.address, block_), queries.load(q.address, block_);

    wgmma_wait<0>(d_k);
    wgmma_wait<0>(d_v);
    warp_arrive(block_.gradient_empty());
    Block::release<2>(v.empty, blocks_);
    Block::release<2>(k.empty, blocks_);
#pragma unroll
    for (int i = 0; i < 16; ++i) d_k[i] *= to_end[i / 2 % 2], d_v[i] *= to_end[i / 2 % 2];
    wgmma_begin();
    multiply_slice<T>(d_v, rounded_k, block_.slice_descriptor(d_o.address));
    wgmma_commit();
    float2 after = {0, 0};
    if constexpr (kGradient) after = keys.template dot<T>(d_k);
    wgmma_begin();
    multiply_slice<T>(d_k, rounded_v, block_.slice_descriptor(q.address));
    wgmma_commit();
    if constexpr (!kLast) {
      issue_from_v(n + 1);
      wgmma_wait<1>(d_v);
      wgmma_wait<1>(d_k);
    } else {
      wgmma_wait<0>(d_v);
      wgmma_wait<0>(d_k);
    }
    Block::release(d_o.empty, blocks_);
    Block::release(q.empty, blocks_);
    if constexpr (!kLast) issue_from_k(n + 1);
    if constexpr (kGradient) {
      put_parts(n, after, keys.template dot<T>(d_k));
      queries.template add_to<T>(d_k, own);
    }
    d_v_.store(d_v, tokens);
    d_k_.store(d_k, tokens);
    if constexpr (!kLast) wait_scores();
  }

  __device__ __forceinline__ void put_parts(int32_t n, float2 after, float2 all) {
    block_.wait_parts(n);
    Parts &parts = block_.parts(n);
    if (threadIdx.x % 4 == 0) {
      parts.b[at_.row] = after.x, parts.b[at_.row + 8] = after.y;
      parts.c[at_.row] = all.x - after.x, parts.c[at_.row + 8] = all.y - after.y;
    }
    block_.finish_parts(n);
  }

  __device__ __forceinline__ void weigh_scores(uint32_t (&rounded_v)[16], uint32_t (&rounded_k)[16],
                                               float (&own)[2]) {
#pragma unroll
    for (int block = 0; block < 4; ++block) {
      const bool any = weights_.each(block, [&](int i, float w) { from_v_[i] *= w, from_k_[i] *= w; });
      if (any) {
        if constexpr (kGradient) weights_.take_own(block, from_v_, own);
#pragma unroll
        for (int i = 4 * block; i < 4 * block + 4; ++i) {
          rounded_v[i] = Pair<T>::pack(from_v_[2 * i], from_v_[2 * i + 1]);
          rounded_k[i] = Pair<T>::pack(from_k_[2 * i], from_k_[2 * i + 1]);
        }
      } else {
#pragma unroll
        for (int i = 4 * block; i < 4 * block + 4; ++i) rounded_v[i] = rounded_k[i] = 0;
      }
    }
    if constexpr (kGradient) weights_.hand_own(own);
  }

  const Params &p_;
  const Block &block_;
  SliceStore<T> d_k_, d_v_;
  const uint32_t blocks_;
  const Place at_;
  Weights<true> weights_;
  float from_v_[32], from_k_[32];
};

}  // namespace lasp::gpu::hopper::fused
