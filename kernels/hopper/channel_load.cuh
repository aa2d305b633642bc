// The copies of the channel pass.
#pragma once

#include "boxes.cuh"
#include "channel_layout.cuh"

namespace lasp::gpu::hopper::channel {

// Which heads of a, b and c they are, for load_chunk(), which has no time to divide.
template <int kHeads>
__device__ __forceinline__ void put_origins(const Params &p, const Block<kHeads> &block) {
#pragma unroll
  for (int i = 0; i < kHeads; ++i) {
    const auto head = [&](int32_t heads) { return uint32_t(int64_t(block.heads[i]) * heads / p.heads); };
    store_shared_16(block.origin(i), uint4{head(p.a_heads), head(p.b_heads), head(p.c_heads), 0});
  }
}

// The copies of a chunk, by one lane.
template <int kHeads>
__device__ __forceinline__ void load_chunk(const Params &p, const Block<kHeads> &block, int32_t n) {
  using L = Layout<kHeads>;
  const uint32_t s = n % L::kStages, stage = block.stage(s), full = block.full(s);
  const int32_t token = block.first + block.begin(p, n), row = block.row;
  const uint32_t decays = kTokens * L::kWidth * (p.decay_dtype == DType::kFloat32 ? 4 : 2);  // bytes, of a head
  barrier_expect(full, 2 * L::kTile + kWalkers * kBoxPanel + kHeads * decays);
#pragma unroll
  for (int i = 0; i < kHeads; ++i) {
    const uint32_t tile = stage + i * L::kHeadPanels * kBoxPanel, c = stage + L::kC + i * kBoxPanel;
    const uint4 heads = load_shared_16(block.origin(i));
    tma_load(stage + L::kG + i * decays, &p.g, full, 0, token, block.heads[i], row);
    tma_load_box(tile + L::kB, &p.b, full, token, 0, heads.y, row, Keep::kNormal);
    tma_load_box(tile + L::kA, &p.a, full, token, 0, heads.x, row, Keep::kNormal);
    tma_load_box(c, &p.c, full, token, block.panels[i], heads.z, row, Keep::kNormal);
  }
}

}  // namespace lasp::gpu::hopper::channel
