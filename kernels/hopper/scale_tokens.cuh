// c of each chunk times each token's decay to the chunk's far end, for the state group. Each product is kept as a
// sum of two rounded numbers, `high` and `low`: one alone would cost the state two decimal digits.
#pragma once

#include "layout.cuh"

namespace lasp::gpu::hopper {

template <typename T, int kDim, int kSlice>
class SliceScaler {
  using L = Layout<kDim, kSlice>;
  static constexpr int kPieces = L::kSliceTile / 16 / 128;  // 16-byte pieces of c a thread
  static constexpr int kRowPieces = kSlice / 8;

 public:
  __device__ __forceinline__ SliceScaler(const Block<kDim, kSlice> &block) : block_(block) {}

  // The stage is full. Read early, so that what follows hides the latency of shared memory.
  __device__ __forceinline__ void read(uint32_t stage) {
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      in_[i] = load_shared_16(block_.stage(stage) + L::kC + piece(i) * 16);
      factor_[i] = block_.decay(stage).write[piece(i) / kRowPieces];
    }
  }
  __device__ __forceinline__ void write(int32_t n) {
    const auto copy = RingIndex<2>::of(n);
    wait_round_before(block_.scaled_empty(copy.stage), copy);
    const uint32_t to = block_.scaled(copy.stage);
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      uint4 high, low;
      split(factor_[i], in_[i].x, high.x, low.x);
      split(factor_[i], in_[i].y, high.y, low.y);
      split(factor_[i], in_[i].z, high.z, low.z);
      split(factor_[i], in_[i].w, high.w, low.w);
      store_shared_16(to + place(piece(i), 0), high);
      store_shared_16(to + place(piece(i), 1), low);
    }
    fence_async_proxy();
    warp_arrive(block_.scaled_full(copy.stage));
  }

 private:
  __device__ __forceinline__ static uint32_t piece(int i) { return i * 128 + threadIdx.x % 128; }
  __device__ __forceinline__ static void split(float factor, uint32_t in, uint32_t &high, uint32_t &low) {
    const float2 x = unpack<T>(in);
    high = pack<T>(factor * x.x, factor * x.y);
    const float2 h = unpack<T>(high);
    low = pack<T>(fmaf(factor, x.x, -h.x), fmaf(factor, x.y, -h.y));
  }
  // Where a part of the piece at 16 * `piece` of a slice tile goes. Side by side the parts alternate by 8 columns,
  // which spreads a warp's stores over all banks.
  __device__ __forceinline__ static uint32_t place(uint32_t piece, uint32_t part) {
    if constexpr (!L::kSideBySide) return part * L::kSliceTile + piece * 16;
    const uint32_t row = piece / kRowPieces;
    const uint32_t column = tile_offset<kSlice>(row, piece % kRowPieces) / 16 % kRowPieces;
    return tile_offset<2 * kSlice>(row, 2 * column + part);
  }

  const Block<kDim, kSlice> &block_;
  uint4 in_[kPieces];
  float factor_[kPieces];
};

// The loop of a warpgroup that does nothing else, alone or in turn with others. It waits for every stage and gives
// every stage back, its turn or not: who skips a phase of a barrier cannot tell it from the next.
template <typename T, int kDim, int kSlice>
__device__ __forceinline__ void scale_slices(const Block<kDim, kSlice> &block, int32_t turn, int32_t turns) {
  SliceScaler<T, kDim, kSlice> scaler(block);
  RingIndex<Layout<kDim, kSlice>::kStages> ring;
  for (int32_t n = 0; n < block.chunks; ++n, ring.next()) {
    wait_this_round(block.full(ring.stage), ring);
    if (n % turns == turn) {
      scaler.read(ring.stage);
      scaler.write(n);
    }
    warp_arrive(block.empty(ring.stage));
  }
}

}  // namespace lasp::gpu::hopper
