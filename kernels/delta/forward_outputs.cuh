// The output group of a forward walk of one slice: o = scale (2^G q S + P U). It follows a chunk behind a warpgroup
// that walks and publishes the rounded state before the chunk and U. Four warps copy. The blocks of 16 tokens of a
// chunk lie in flipped order: token t is row t ^ 48.
#pragma once

#include "walk.cuh"

namespace lasp::gpu::delta_hopper::forward_walk {

constexpr int kOutputThreads = 384;
constexpr int kChainRegisters = 240, kOutputRegisters = 152, kCopyRegisters = 72;
static_assert(kChainRegisters + kOutputRegisters + kCopyRegisters <= 3 * 168);
// A stage of outputs: q, P high and low as squares with zeros over the diagonal, and where it has them, factors.
constexpr int kOfQ = 0, kOfP = 2 * kPanel, kOfFactors = 4 * kPanel;

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
      multiply(o, stage + kOfQ, block.state(), false);
      multiply(o, stage + kOfQ + kPanel, block.state() + kPanel, true);
      hopper::wgmma_commit();
      float to_token[2];
      if constexpr (kDecay)
#pragma unroll
        for (int r = 0; r < 2; ++r)
          to_token[r] = load_float(stage + kOfFactors + kToToken + 4 * (16 * warp + lane / 4 + 8 * r));
      hopper::wgmma_wait<0>(o);
      hopper::barrier_arrive(block.state_empty());
      if constexpr (kDecay)
#pragma unroll
        for (int i = 0; i < 32; ++i) o[i] *= to_token[i / 2 % 2];
      hopper::barrier_wait(block.u_full(), n & 1);
      hopper::wgmma_begin();
      multiply(o, stage + kOfP, u + kPanel, true);
      multiply(o, stage + kOfP + kPanel, u, true);
      multiply(o, stage + kOfP, u, true);
      hopper::wgmma_commit();
      hopper::wgmma_wait<0>(o);
      hopper::barrier_arrive(block.u_empty());
      store(o, stage + kOfQ, n);
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
    const int first = (16 * warp) ^ 48, column = place.slice * kSlice + lane % 8 * 8;
    const int count = column < p.v.dim ? place.run.length - n * kChunk - first : 0;
    T *const to = static_cast<T *>(p.o.data) +
                  offset_of(p.o, place.run.row, place.run.begin + n * kChunk + first, place.head, p.heads) + column;
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
