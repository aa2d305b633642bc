// The output group of a forward walk: o = scale (2^G q S + P U).
#pragma once

#include "forward_layout.cuh"

namespace lasp::gpu::delta_hopper::forward_walk {

// Block: where a stage has q and P, and what the chain publishes.
template <typename T, bool kDecay, class Block>
struct Outputs {
  static constexpr int kStages = Block::kOutputStages;
  const DeltaForward &p;
  const Place &place;
  const Block &block;
  const int lane = threadIdx.x % 32, warp = threadIdx.x % kGroup / 32;

  // o += A B^T over 64 columns; tiles of 64 rows.
  __device__ __forceinline__ void multiply(float (&o)[32], uint32_t a, uint32_t b, bool accumulate) const {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      hopper::wgmma<T, false, false>(o, hopper::advance(hopper::tile_descriptor<128>(a), 32 * i),
                                     hopper::advance(hopper::tile_descriptor<128>(b), 32 * i), i > 0 || accumulate);
  }

  __device__ __forceinline__ void run() const {
    for (int n = 0; n < place.chunks; ++n) {
      const uint32_t stage = block.output(n), u = block.u();
      float o[32];
      wait_copies(block.output_full(n), n / kStages);
      hopper::barrier_wait(block.state_full(), n & 1);
      hopper::wgmma_begin();
      multiply(o, stage + kQ, block.state(), false);
      multiply(o, stage + kQ + kPanel, block.state() + kPanel, true);
      hopper::wgmma_commit();
      float to_token[2];
      if constexpr (kDecay)
#pragma unroll
        for (int r = 0; r < 2; ++r)
          to_token[r] = load_float(stage + kOutputFactors + kToToken + 4 * (16 * warp + lane / 4 + 8 * r));
      hopper::wgmma_wait<0>(o);
      hopper::barrier_arrive(block.state_empty());
      if constexpr (kDecay)
#pragma unroll
        for (int i = 0; i < 32; ++i) o[i] *= to_token[i / 2 % 2];
      hopper::barrier_wait(block.u_full(), n & 1);
      hopper::wgmma_begin();
      multiply(o, stage + kP, u + kPanel, true);
      multiply(o, stage + kP + kPanel, u, true);
      multiply(o, stage + kP, u, true);
      hopper::wgmma_commit();
      hopper::wgmma_wait<0>(o);
      hopper::barrier_arrive(block.u_empty());
      store(o, stage + kQ, n);
      hopper::barrier_arrive(block.output_empty(n));
    }
  }

  // By way of a panel of q, which has been read.
  __device__ __forceinline__ void store(const float (&o)[32], uint32_t panel, int n) const {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      uint32_t x[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) x[i] = pack<T>(p.scale * o[8 * j + 2 * i], p.scale * o[8 * j + 2 * i + 1]);
      hopper::store_matrices(panel + swizzled(16 * warp + lane % 16, 2 * j + lane / 16), x[0], x[1], x[2], x[3]);
    }
    __syncwarp();
    const int first = (16 * warp) ^ kFlip, count = place.run.length - n * kChunk - first;
    T *const to = static_cast<T *>(p.o.data) +
                  offset_of(p.o, place.run.row, place.run.begin + n * kChunk + first, place.head, p.heads) +
                  place.slice * kSlice + lane % 8 * 8;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = 4 * i + lane / 8;
      const uint4 x = load_shared_16(panel + swizzled(16 * warp + row, lane % 8));
      if (row < count) store_piece(to + row * p.o.strides.token, x);
    }
    __syncwarp();
  }
};

}  // namespace lasp::gpu::delta_hopper::forward_walk
