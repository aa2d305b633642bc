// The state warpgroup: takes the state through the chunks in float32 registers and gives the output warpgroups a
// rounded copy of the state before each.
#pragma once

#include "layout.cuh"
#include "wgmma.cuh"

namespace lasp::gpu::hopper {

template <typename T, int kDim, int kSlice>
class StateGroup {
  using L = Layout<kDim, kSlice>;
  static constexpr int kBlocks = kDim / 64;                      // of 64 state rows
  static constexpr int kCheckpoint = kFusedCheckpoint / kChunk;  // chunks
  static constexpr int kTogether =
      kSlice == 32 ? kBlocks : 1;  // blocks whose products run at once: as registers allow

 public:
  __device__ __forceinline__ StateGroup(const PassParams &p, const Block<kDim, kSlice> &block)
      : p_(p), block_(block) {}

  __device__ __forceinline__ void run() {
    load();
    if (p_.decay == Decay::kNone) {
      walk<false>();
    } else {
      walk<true>();
    }
    store();
  }

 private:
  // A chunk's products do not read the state: they run while the state before it is published.
  template <bool kDecays>
  __device__ __forceinline__ void walk() {
    RingIndex<L::kStages> ring;
    for (int32_t n = 0; n < block_.chunks; ++n, ring.next()) {
      const bool kept = p_.checkpoints && n % kCheckpoint == 0;
      const auto copy = RingIndex<2>::of(n);
      const uint32_t b = block_.stage(ring.stage) + L::kB;
      const uint32_t c = kDecays ? block_.scaled(copy.stage) : block_.stage(ring.stage) + L::kC;
      wait_this_round(block_.full(ring.stage), ring);
      if constexpr (kDecays) wait_this_round(block_.scaled_full(copy.stage), copy);
      const float total = kDecays ? block_.decay(ring.stage).total : 1.0f;
      const float nearest = kDecays ? block_.decay(ring.stage).nearest : 1.0f;
      update<kDecays>(b, c, total, nearest, [&] {
        if (p_.y) {
          publish(copy);
        } else if (kept) {
          round(copy.stage);
        }
      });
      if constexpr (kDecays) warp_arrive(block_.scaled_empty(copy.stage));
      warp_arrive(block_.empty(ring.stage));
      if (kept) keep(n);
    }
  }

  // Calls f(element, row, column) with what each accumulator element stands for.
  template <typename F>
  __device__ __forceinline__ void each(F f) {
    const int32_t lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32;
#pragma unroll
    for (int m = 0; m < kBlocks; ++m)
#pragma unroll
      for (int i = 0; i < kSlice / 2; ++i)
        f(state_[m][i], 64 * m + 16 * warp + lane / 4 + 8 * (i / 2 % 2), 8 * (i / 4) + lane % 4 * 2 + i % 2);
  }
  // Of kDim rows the state may have fewer: what is read of the others' columns of a and b is zero.
  __device__ __forceinline__ bool has(int32_t row) const { return row < p_.a_dim; }
  __device__ __forceinline__ void load() {
    if (!p_.state_in) {
      each([](float &s, int32_t, int32_t) { s = 0; });
      return;
    }
    // All loads before the first use.
    const float *const from = p_.state_in + (block_.state * p_.state_size + block_.column * p_.state_column);
    each([&](float &s, int32_t row, int32_t column) {
      s = has(row) ? from[row * p_.state_row + column * p_.state_column] : 0;
    });
    each([&](float &s, int32_t, int32_t) { s *= p_.in_scale; });
  }
  __device__ __forceinline__ void store() {
    float *to = p_.state_out;
    int64_t at = block_.state;
    if (p_.edge_state) {
      const int64_t edge = p_.reversed ? block_.run.starts : block_.run.ends;
      if (edge < 0) return;
      to = p_.edge_state, at = edge * p_.heads + block_.head;
    }
    if (!to) return;
    to += at * p_.state_size + block_.column * p_.state_column;
    each([&](float &s, int32_t row, int32_t column) {
      if (has(row)) to[row * p_.state_row + column * p_.state_column] = p_.out_scale * s;
    });
  }

  // Rounds the state before a chunk into the copy that is the chunk's.
  __device__ __forceinline__ void round(uint32_t copy) {
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32;
#pragma unroll
    for (int m = 0; m < kBlocks; ++m)
#pragma unroll
      for (int j = 0; j < kSlice / 8; j += 2) {
        uint32_t v[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) v[i] = pack<T>(state_[m][4 * j + 2 * i], state_[m][4 * j + 2 * i + 1]);
        store_matrices(
            block_.rounded_state(copy) + tile_offset<kSlice>(64 * m + 16 * warp + lane % 16, j + lane / 16), v[0],
            v[1], v[2], v[3]);
      }
    __syncwarp();
  }
  // That, for the output group whose turn it is.
  __device__ __forceinline__ void publish(RingIndex<2> copy) {
    wait_round_before(block_.state_empty(copy.stage), copy);
    round(copy.stage);
    fence_async_proxy();
    warp_arrive(block_.state_full(copy.stage));
  }
  // Of that tile, which nobody else writes to, a checkpoint: in memory [a.dim, y.dim]. Each warp reads its own
  // rows.
  __device__ __forceinline__ void keep(int32_t n) {
    constexpr int kPieces = kSlice / 8;  // of 16 bytes, in a row
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32;
    const int64_t index = (int64_t{block_.run.checkpoint} + n / kCheckpoint) * p_.heads + block_.head;
    T *const to = static_cast<T *>(p_.checkpoints) + index * p_.state_size + block_.column;
#pragma unroll
    for (int m = 0; m < kBlocks; ++m)
#pragma unroll
      for (int i = 0; i < kPieces / 2; ++i) {
        const uint32_t row = 64 * m + 16 * warp + (32 * i + lane) / kPieces, piece = lane % kPieces;
        if (has(row))
          store_global_16(to + row * p_.y_dim + 8 * piece,
                          load_shared_16(block_.rounded_state(n % 2) + tile_offset<kSlice>(row, piece)));
      }
  }

  // state = total * state + nearest * b^T c. The sum over a chunk is the tensor cores', that over chunks is IEEE
  // float32. `meanwhile` is called while the first products run.
  template <bool kTwoParts, typename F>
  __device__ __forceinline__ void update(uint32_t b_tile, uint32_t c_tile, float total, float nearest,
                                         F meanwhile) {
    constexpr bool kWide = kTwoParts && L::kSideBySide;
    constexpr int kWidth = kWide ? 2 * kSlice : kSlice;
    const uint64_t b = tile_descriptor<128>(b_tile), c = tile_descriptor<kWidth * 2>(c_tile);
#pragma unroll
    for (int first = 0; first < kBlocks; first += kTogether) {
      float sum[kTogether][kWidth / 2];
      wgmma_begin();
#pragma unroll
      for (int m = 0; m < kTogether; ++m)
#pragma unroll
        for (int k = 0; k < (kTwoParts && !kWide ? 8 : 4); ++k)
          wgmma<T, true, true>(sum[m], advance(b, (first + m) * kPanel + k % 4 * 2048),
                               advance(c, k / 4 * L::kSliceTile + k % 4 * 32 * kWidth), k > 0);
      wgmma_commit();
      if (first == 0) meanwhile();
#pragma unroll
      for (int m = 0; m < kTogether; ++m) {
        wgmma_wait<0>(sum[m]);
#pragma unroll
        for (int i = 0; i < kSlice / 2; ++i) {
          const int part = kWide ? i / 4 * 8 + i % 4 : i;  // the parts alternate by 8 columns
          const float add = kWide ? sum[m][part] + sum[m][part + (kWide ? 4 : 0)] : sum[m][i];
          state_[first + m][i] = fmaf(total, state_[first + m][i], kTwoParts ? nearest * add : add);
        }
      }
    }
  }

  const PassParams &p_;
  const Block<kDim, kSlice> &block_;
  float state_[kBlocks][kSlice / 2];
};

}  // namespace lasp::gpu::hopper
