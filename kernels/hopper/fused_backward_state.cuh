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

  // Every piece of code is there once, with branches for what a step consists of: less of it to fetch.
  __device__ __forceinline__ void run() {
    load_gradient();
    load_checkpoint(0);
    // The step back that comes next; steps whose gradient is published; the segment whose states are being found,
    // counted from the last, and which of its chunks comes next.
    int32_t n = 0, published = 0, count = 0, next = 0;
#pragma unroll 1
    while (n < block_.chunks) {
      if (published == n) publish_gradient(published++);
      const int32_t chunk = block_.chunk(n), due = kSegment - 1 - chunk % kSegment;
      // A slot is free again after the step back that read it: states are found at the walk's pace.
      const bool walk = count != block_.count(chunk) && (count == block_.segments || next >= due);
      const bool ahead = count < block_.segments && !(walk && due == kSegment - 1);
      if (ahead && next == 0) unpack_checkpoint();
      step(n, count, next, walk, ahead);
      if (walk) ++n;
      if (ahead && ++next == kSegment) load_checkpoint(++count), next = 0;
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
    if (!p_.d_edge_state || block_.run.starts < 0) return;
    float *const to = p_.d_edge_state + (block_.run.starts * p_.heads + block_.head) * kDim * kDim;
    each(gradient_,
         [&](float &s, int32_t row, int32_t column) { to[row * kDim + block_.column + column] = p_.scale * s; });
  }
  __device__ __forceinline__ void load_checkpoint(int32_t count) {
    if (count >= block_.segments) return;
    const int64_t index = block_.run.checkpoint + (block_.segments - 1 - count);
    const auto *const from =
        static_cast<const uint16_t *>(p_.checkpoints) + (index * p_.heads + block_.head) * kDim * kDim;
    each(state_, [&](float &s, int32_t row, int32_t column) {
      s = __uint_as_float(from[(block_.column + column) * kDim + row]);
    });
  }
  // Later, so that nothing waits for the loads.
  __device__ __forceinline__ void unpack_checkpoint() {
    each(state_, [](float &s, int32_t, int32_t) { s = Pair<T>::unpack(__float_as_uint(s)).x; });
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
    warp_arrive(block_.gradient_full());
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
      for (int i = 0; i < 16; ++i) {
        state[m][i] *= total;
        asm volatile("" : "+f"(state[m][i]));  // not later than here: wgmma_begin does not name it
      }
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

  // With `walk`, takes the chunk of step n into the gradient. With `ahead`, publishes the state before chunk i of a
  // segment (counted from the last) for the query group, and takes that chunk in where another of its segment
  // follows.
  __device__ __forceinline__ void step(int32_t n, int32_t count, int32_t i, bool walk, bool ahead) {
    const RingTile d_o = block_.tile(n, kDo), q = block_.tile(n, kQ);
    const uint32_t weighted_d_o = block_.base + Layout::kWeightedDo, weighted_q = block_.base + Layout::kWeightedQ;
    const uint32_t ahead_v = block_.base + Layout::kAhead, ahead_k = block_.base + Layout::kAheadK,
                   slot = block_.slot(count, i);
    const bool on = ahead && i < kSegment - 1 && (block_.segments - 1 - count) * kSegment + i + 1 < block_.chunks;
    float total = 1, ahead_total = 1;
    if (walk) {
      block_.wait_decays(n);
      const Decays &decays = block_.decays(n);
      total = decays.total;
      if constexpr (kGradient) sum_through(n, total);
      barrier_wait(d_o.full, d_o.parity);
      const Pieces d_o_pieces =
          load_pieces([&](uint32_t row, uint32_t piece) { return d_o.address + block_.slice_offset(row, piece); },
                      decays.from_start);
      barrier_wait(q.full, q.parity);
      const Pieces q_pieces =
          load_pieces([&](uint32_t row, uint32_t piece) { return q.address + block_.slice_offset(row, piece); },
                      decays.from_start);
      store_weighted(d_o_pieces, weighted_d_o);
      store_weighted(q_pieces, weighted_q);
      block_.finish_decays(n);
    }
    if (on) {
      barrier_wait(block_.ahead_full(), ahead_parity_);
      ahead_parity_ ^= 1;
      ahead_total = block_.ahead_decays().total;
      const Pieces k_pieces =
          load_pieces([&](uint32_t row, uint32_t piece) { return ahead_k + tile_offset<kSlice>(row, piece); },
                      block_.ahead_decays().to_end);
      store_weighted(k_pieces, ahead_k);
    }
    if (ahead) {
      if (count > 0) barrier_wait(block_.state_empty(slot), (count & 1) ^ 1);  // the state it held has been used
      publish(state_, block_.state(slot));
    }
    fence_async_proxy();
    if (ahead) warp_arrive(block_.state_full(slot));
    warpgroup_sync(kBarrier);
    // Each case whole, from begin to wait: across a branch the compiler would let no two products overlap.
    if (walk && on) {
      scale_by(gradient_, total);
      scale_by(gradient_t_, total);
      scale_by(state_, ahead_total);
      wgmma_begin();
      add_product(gradient_, q.address, weighted_d_o);
      add_product(gradient_t_, d_o.address, weighted_q);
      add_product(state_, ahead_v, ahead_k);
      wgmma_commit();
      wait_for(gradient_);
      wait_for(gradient_t_);
      wait_for(state_);
    } else if (walk) {
      scale_by(gradient_, total);
      scale_by(gradient_t_, total);
      wgmma_begin();
      add_product(gradient_, q.address, weighted_d_o);
      add_product(gradient_t_, d_o.address, weighted_q);
      wgmma_commit();
      wait_for(gradient_);
      wait_for(gradient_t_);
    } else if (on) {
      scale_by(state_, ahead_total);
      wgmma_begin();
      add_product(state_, ahead_v, ahead_k);
      wgmma_commit();
      wait_for(state_);
    }
    if (on) Block::release(block_.ahead_empty(), blocks_);
    if (walk) {
      Block::release(d_o.empty, blocks_);
      Block::release(q.empty, blocks_);
    }
    warpgroup_sync(kBarrier);  // all warps' products have read the weighted slices
  }

  const Params &p_;
  const Block &block_;
  const uint32_t blocks_;
  const Place at_;
  State gradient_, gradient_t_, state_;
  uint32_t ahead_parity_ = 0;
};

}  // namespace lasp::gpu::hopper::fused
