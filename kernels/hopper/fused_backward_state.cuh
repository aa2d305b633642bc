// The state warpgroup of the fused backward kernel. In float32 registers it carries the gradient of the state, as
// [K, 32 of V] and as [V, 32 of K], from the run's end to its beginning; and, a segment ahead of it, the state [V,
// 32 of K] forward from a checkpoint. Rounded copies of both go to the other warpgroups through shared memory.
#pragma once

#include "fused_backward_layout.cuh"

namespace lasp::gpu::hopper::fused {

template <typename T, bool kGradient>
class StateGroup {
  static constexpr uint32_t kBarrier = 1;  // named, of the hardware
  using State = float[2][16];              // 128 rows as two accumulators

 public:
  __device__ __forceinline__ StateGroup(const Params &p, const Block &block)
      : p_(p), block_(block), blocks_(cluster_size()) {}

  __device__ __forceinline__ void run() {
    load_gradient();
    publish_gradient(0);
    load_checkpoint(0);
    for (int32_t i = 0; i < kSegment; ++i) step_ahead(0, i);
    load_checkpoint(1);
    int32_t next = 0;
    for (int32_t n = 0; n < block_.chunks; ++n) {
      const int32_t chunk = block_.chunk(n), count = block_.count(chunk) + 1, due = kSegment - 1 - chunk % kSegment;
      if (n > 0) publish_gradient(n);
      if (count == block_.segments) {
        step<false>(n, count, due);
        continue;
      }
      for (; next < due; ++next) step_ahead(count, next);  // the last segment is short
      if (due == kSegment - 1) {
        step<false>(n, count, due);
        publish_state(count, due);
        load_checkpoint(count + 1);
        next = 0;
      } else {
        step<true>(n, count, due);
        next = due + 1;
      }
    }
    store_gradient();
  }

 private:
  // Calls f(element, row, column) with what each accumulator element stands for.
  template <typename F>
  __device__ __forceinline__ void each(State &state, F f) {
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
      for (int i = 0; i < 16; ++i)
        f(state[m][i], 64 * m + at_.row + 8 * (i / 2 % 2), 8 * (i / 4) + at_.column + i % 2);
  }
  __device__ __forceinline__ int64_t gradient_offset() const {
    return (block_.run.state * p_.heads + block_.head) * kDim * kDim;
  }
  __device__ __forceinline__ void load_gradient() {
    const float *const from = p_.d_state_in + gradient_offset(), in_scale = 1 / p_.scale;
    each(gradient_, [&](float &s, int32_t row, int32_t column) {
      s = p_.d_state_in ? in_scale * from[row * kDim + block_.column + column] : 0.0f;
    });
    each(gradient_t_, [&](float &s, int32_t row, int32_t column) {
      s = p_.d_state_in ? in_scale * from[(block_.column + column) * kDim + row] : 0.0f;
    });
  }
  __device__ __forceinline__ void store_gradient() {
    if (!p_.d_state_out) return;
    float *const to = p_.d_state_out + gradient_offset();
    each(gradient_,
         [&](float &s, int32_t row, int32_t column) { to[row * kDim + block_.column + column] = p_.scale * s; });
  }
  __device__ __forceinline__ void load_checkpoint(int32_t count) {
    if (count >= block_.segments) return;
    const int64_t index = p_.checkpoint_of[block_.run_index] + (block_.segments - 1 - count);
    const float *const from = p_.checkpoints + (index * p_.heads + block_.head) * kDim * kDim;
    each(state_, [&](float &s, int32_t row, int32_t column) { s = from[(block_.column + column) * kDim + row]; });
  }

  // Shared address of the 16-byte piece that this lane names for four 8x8 matrices of a rounded state.
  __device__ __forceinline__ uint32_t place(uint32_t state, int m, int j) const {
    const uint32_t lane = threadIdx.x % 32;
    return state + tile_offset<kSlice>(64 * m + 16 * at_.warp + lane % 16, j + lane / 16);
  }
  __device__ __forceinline__ void publish(const State &state, uint32_t to) {
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
      for (int j = 0; j < 4; j += 2) {
        uint32_t v[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) v[i] = Pair<T>::pack(state[m][4 * j + 2 * i], state[m][4 * j + 2 * i + 1]);
        store_matrices(place(to, m, j), v[0], v[1], v[2], v[3]);
      }
  }
  // The gradient of the state after the chunk of step n, for the key group.
  __device__ __forceinline__ void publish_gradient(int32_t n) {
    barrier_wait(block_.gradient_empty(), (n & 1) ^ 1);
    publish(gradient_, block_.base + Layout::kGradient);
    publish(gradient_t_, block_.base + Layout::kGradientT);
    fence_async_proxy();
    Block::arrive_warp(block_.gradient_full());
  }

  // This warp's part of <S_0, dS_E>. It wrote what it reads of S_0 itself.
  __device__ __forceinline__ void sum_through(int32_t n, float total) {
    const int32_t chunk = block_.chunk(n);
    const uint32_t from = block_.state(block_.slot(block_.count(chunk), chunk % kSegment));
    float part[4] = {0, 0, 0, 0};
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
      for (int j = 0; j < 4; j += 2) {
        const uint4 v = load_matrices(place(from, m, j));
        const uint32_t in[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float2 s = Pair<T>::unpack(in[i]);
          part[i] = fmaf(s.x, gradient_t_[m][4 * j + 2 * i], fmaf(s.y, gradient_t_[m][4 * j + 2 * i + 1], part[i]));
        }
      }
    float sum = (part[0] + part[1]) + (part[2] + part[3]);
#pragma unroll
    for (int step = 1; step < 32; step *= 2) sum += __shfl_xor_sync(~0u, sum, step);
    block_.wait_parts(n);
    if (threadIdx.x % 32 == 0) block_.parts(n).x[at_.warp] = p_.scale * total * sum;
    block_.finish_parts(n);
  }

  // What a thread weighs of a [64, 32] slice: two 16-byte pieces, times their tokens' factors.
  struct Pieces {
    uint4 v[2];
    float w[2];
  };
  static __device__ __forceinline__ uint32_t row_of(int i) { return threadIdx.x % 128 / 4 + 32 * i; }
  template <typename F>
  __device__ __forceinline__ Pieces load_pieces(F from, const float *factor) {
    Pieces pieces;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      pieces.v[i] = load_shared_16(from(row_of(i), threadIdx.x % 4));
      pieces.w[i] = factor[row_of(i)];
    }
    return pieces;
  }
  __device__ __forceinline__ void store_weighted(const Pieces &pieces, uint32_t to) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint4 v = pieces.v[i];
      const uint32_t in[4] = {v.x, v.y, v.z, v.w};
      uint32_t out[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float2 x = Pair<T>::unpack(in[e]);
        out[e] = Pair<T>::pack(pieces.w[i] * x.x, pieces.w[i] * x.y);
      }
      store_shared_16(to + tile_offset<kSlice>(row_of(i), threadIdx.x % 4), {out[0], out[1], out[2], out[3]});
    }
  }
  __device__ __forceinline__ void scale_by(State &state, float total) {
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
      for (int i = 0; i < 16; ++i) state[m][i] *= total;
  }
  // state += tile^T slice. The caller begins and commits.
  __device__ __forceinline__ void add_product(State &state, uint32_t tile, uint32_t slice) {
    const uint64_t a = tile_descriptor<128>(tile), b = tile_descriptor<64>(slice);
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
      for (int k = 0; k < kChunk / 16; ++k)
        wgmma<T, true, true>(state[m], advance(a, m * kPanel + k * 2048), advance(b, k * 16 * 64), true);
  }
  __device__ __forceinline__ void wait_for(State &state) {
    wgmma_wait<0>(state[0]);
    wgmma_wait<0>(state[1]);
  }

  // Takes the chunk of step n into the gradient; with kAhead chunk i of the segment ahead into the state, too.
  template <bool kAhead>
  __device__ __forceinline__ void step(int32_t n, int32_t count, int32_t i) {
    const RingTile d_o = block_.tile(n, kDo), q = block_.tile(n, kQ);
    const uint32_t weighted_d_o = block_.base + Layout::kWeightedDo, weighted_q = block_.base + Layout::kWeightedQ;
    const uint32_t ahead_k = block_.base + Layout::kAheadK;
    block_.wait_decays(n);
    const Decays &decays = block_.decays(n);
    const float total = decays.total;
    float ahead_total = 1;
    if constexpr (kGradient) sum_through(n, total);
    barrier_wait(d_o.full, d_o.parity);
    const Pieces d_o_pieces =
        load_pieces([&](uint32_t row, uint32_t piece) { return d_o.address + block_.slice_offset(row, piece); },
                    decays.from_start);
    barrier_wait(q.full, q.parity);
    const Pieces q_pieces =
        load_pieces([&](uint32_t row, uint32_t piece) { return q.address + block_.slice_offset(row, piece); },
                    decays.from_start);
    if constexpr (kAhead) {
      barrier_wait(block_.ahead_full(), ahead_parity_);
      ahead_parity_ ^= 1;
      ahead_total = block_.ahead_decays().total;
      const Pieces k_pieces =
          load_pieces([&](uint32_t row, uint32_t piece) { return ahead_k + tile_offset<kSlice>(row, piece); },
                      block_.ahead_decays().to_end);
      store_weighted(k_pieces, ahead_k);
      wait_slot(count, i);
      publish(state_, block_.state(block_.slot(count, i)));
    }
    store_weighted(d_o_pieces, weighted_d_o);
    store_weighted(q_pieces, weighted_q);
    block_.finish_decays(n);
    fence_async_proxy();
    if constexpr (kAhead) Block::arrive_warp(block_.state_full(block_.slot(count, i)));
    warpgroup_sync(kBarrier);
    scale_by(gradient_, total);
    scale_by(gradient_t_, total);
    if constexpr (kAhead) scale_by(state_, ahead_total);
    wgmma_begin();
    add_product(gradient_, q.address, weighted_d_o);
    add_product(gradient_t_, d_o.address, weighted_q);
    if constexpr (kAhead) add_product(state_, block_.base + Layout::kAhead, ahead_k);
    wgmma_commit();
    wait_for(gradient_);
    wait_for(gradient_t_);
    if constexpr (kAhead) {
      wait_for(state_);
      Block::release(block_.ahead_empty(), blocks_);
    }
    Block::release(d_o.empty, blocks_);
    Block::release(q.empty, blocks_);
    warpgroup_sync(kBarrier);  // all warps' products have read the weighted slices
  }

  // Until the state that the slot held before, of the segment after, has been used.
  __device__ __forceinline__ void wait_slot(int32_t count, int32_t i) {
    if (count > 0) barrier_wait(block_.state_empty(block_.slot(count, i)), (count & 1) ^ 1);
  }
  // The state before chunk i of a segment (counted from the last), for the query group.
  __device__ __forceinline__ void publish_state(int32_t count, int32_t i) {
    wait_slot(count, i);
    publish(state_, block_.state(block_.slot(count, i)));
    fence_async_proxy();
    Block::arrive_warp(block_.state_full(block_.slot(count, i)));
  }
  // That, and takes the chunk in where another of its segment follows.
  __device__ __forceinline__ void step_ahead(int32_t count, int32_t i) {
    publish_state(count, i);
    const int32_t chunk = (block_.segments - 1 - count) * kSegment + i;
    if (i == kSegment - 1 || chunk + 1 >= block_.chunks) return;
    const uint32_t slice = block_.base + Layout::kAheadK;
    barrier_wait(block_.ahead_full(), ahead_parity_);
    ahead_parity_ ^= 1;
    const float total = block_.ahead_decays().total;
    const Pieces pieces =
        load_pieces([&](uint32_t row, uint32_t piece) { return slice + tile_offset<kSlice>(row, piece); },
                    block_.ahead_decays().to_end);
    store_weighted(pieces, slice);
    fence_async_proxy();
    warpgroup_sync(kBarrier);
    scale_by(state_, total);
    wgmma_begin();
    add_product(state_, block_.base + Layout::kAhead, slice);
    wgmma_commit();
    wait_for(state_);
    Block::release(block_.ahead_empty(), blocks_);
  }

  const Params &p_;
  const Block &block_;
  const uint32_t blocks_;
  const Place at_;
  State gradient_, gradient_t_, state_;
  uint32_t ahead_parity_ = 0;
};

}  // namespace lasp::gpu::hopper::fused
