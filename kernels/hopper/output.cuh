// The output warpgroups: y of a chunk from its scores a b^T, masked and decayed, and from the state before it.
#pragma once

#include "layout.cuh"
#include "scale_tokens.cuh"
#include "wgmma.cuh"

namespace lasp::gpu::hopper {

// Score element 4j + 2r + e of this thread is row `row + 8r`, column `8j + column + e`.
struct ScorePlace {
  int32_t warp, row, column;
  __device__ __forceinline__ ScorePlace()
      : warp(threadIdx.x % 128 / 32), row(warp * 16 + threadIdx.x % 32 / 4), column(threadIdx.x % 4 * 2) {}
};

// The factors of all chunks where every token decays alike: 0 where masked.
__device__ __forceinline__ void fill_factors(float (&factor)[32], float log2_decay, bool reversed) {
  const ScorePlace at;
#pragma unroll
  for (int i = 0; i < 32; ++i) {
    const int32_t later = at.row + 8 * (i / 2 % 2) - (8 * (i / 4) + at.column + i % 2);
    const int32_t distance = reversed ? -later : later;
    factor[i] = distance < 0 ? 0.0f : exp2_fast(log2_decay * float(distance));
  }
}

// The factors of one chunk whose log decays (base 2) sum up to `sum`. Outside the warp's own 16 columns a factor is
// the decay to an edge of those times the decay from it, which saves most of the exponentials; no exp2 that counts
// sees a sum over more tokens than lie between the two, so none overflows where the product does not.
template <bool kReversed>
__device__ __forceinline__ void fill_factors(float (&factor)[32], const float *sum, int warp) {
  const ScorePlace at;
  const auto decay = [](float from, float to) { return kReversed ? from - to : to - from; };
  const float row_sum[2] = {sum[at.row], sum[at.row + 8]}, edge = sum[kReversed ? 16 * warp + 15 : 16 * warp];
  const float row_factor[2] = {exp2_fast(decay(edge, row_sum[0])), exp2_fast(decay(edge, row_sum[1]))};
  float own[8];
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const float2 column = *reinterpret_cast<const float2 *>(sum + 16 * warp + 8 * j + at.column);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int32_t later = at.row - 16 * warp + 8 * (i / 2) - (8 * j + at.column + i % 2);
      const float x = decay(i % 2 ? column.y : column.x, row_sum[i / 2]);
      own[4 * j + i] = exp2_fast((kReversed ? later <= 0 : later >= 0) ? x : -INFINITY);
    }
  }
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const bool seen = kReversed ? j / 2 > warp : j / 2 < warp;
    const float2 column = *reinterpret_cast<const float2 *>(sum + 8 * j + at.column);
    const float column_factor[2] = {exp2_fast(seen ? decay(column.x, edge) : -INFINITY),
                                    exp2_fast(seen ? decay(column.y, edge) : -INFINITY)};
#pragma unroll
    for (int i = 0; i < 4; ++i)
      factor[4 * j + i] = j / 2 == warp ? own[4 * (j % 2) + i] : row_factor[i / 2] * column_factor[i % 2];
  }
}

// This warp's 16 rows of y on their way to memory: rounded into shared memory, then stored as whole 16-byte pieces
// while the tensor cores work on the next chunk.
template <typename T, int kSlice>
struct RowStore {
  static constexpr int kPieces = kSlice / 8;
  uint32_t staging;
  int64_t token_stride;
  bool adds;  // to what is there; with slices of 32
  T *to = nullptr;
  int32_t rows = 0;                        // before the run's end
  uint4 there[kSlice == 32 ? 2 : 1] = {};  // on its way while the tensor cores work

  __device__ __forceinline__ void stage(const float (&y)[kSlice / 2], float scale, T *destination, int32_t count) {
    const uint32_t lane = threadIdx.x % 32;
    to = destination;
    rows = count;
    if constexpr (kSlice == 32)
      if (adds)
#pragma unroll
        for (int i = 0; i < kPieces / 2; ++i) {
          const int32_t row = (i * 32 + int32_t(lane)) / kPieces;
          if (row < rows) there[i] = *reinterpret_cast<const uint4 *>(to + row * token_stride + lane % kPieces * 8);
        }
    __syncwarp();
#pragma unroll
    for (int j = 0; j < kPieces; j += 2) {
      uint32_t m[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) m[i] = pack<T>(y[4 * j + 2 * i] * scale, y[4 * j + 2 * i + 1] * scale);
      store_matrices(staging + tile_offset<kSlice>(lane % 16, j + lane / 16), m[0], m[1], m[2], m[3]);
    }
  }
  __device__ __forceinline__ void flush() const {
    const uint32_t lane = threadIdx.x % 32;
    __syncwarp();
    uint4 v[kPieces / 2];
#pragma unroll
    for (int i = 0; i < kPieces / 2; ++i)
      v[i] = load_shared_16(staging + tile_offset<kSlice>((i * 32 + lane) / kPieces, lane % kPieces));
#pragma unroll
    for (int i = 0; i < kPieces / 2; ++i) {
      const int32_t row = (i * 32 + lane) / kPieces;
      T *const at = to + row * token_stride + lane % kPieces * 8;
      if (row >= rows) continue;
      if constexpr (kSlice == 32)
        if (adds)
          v[i] = {sum(v[i].x, there[i].x), sum(v[i].y, there[i].y), sum(v[i].z, there[i].z),
                  sum(v[i].w, there[i].w)};
      store_global_16(at, v[i]);
    }
  }
  static __device__ __forceinline__ uint32_t sum(uint32_t x, uint32_t y) {
    const float2 a = unpack<T>(x), b = unpack<T>(y);
    return pack<T>(a.x + b.x, a.y + b.y);
  }
};

template <typename T, bool kScalar, int kDim, int kSlice>
__device__ __forceinline__ void compute_output(const PassParams &p, const Block<kDim, kSlice> &block, int group) {
  using L = Layout<kDim, kSlice>;
  constexpr int kStateStep = 16 * kSlice * 2;  // bytes of 16 rows of a slice tile
  const ScorePlace at;
  const int warp = __shfl_sync(~0u, at.warp, 0);
  RowStore<T, kSlice> rows{block.base + L::kY + group * L::kSliceTile + warp * kStateStep, p.y_strides.token,
                           p.adds};
  T *const y = static_cast<T *>(p.y) + block.run.row * p.y_strides.batch + block.head * p.y_strides.head +
               (block.run.begin + warp * 16) * p.y_strides.token + block.column;
  float factor[32];
  if constexpr (!kScalar) {
    const float g = p.decay == Decay::kNone ? 0.0f : clamped_log2(static_cast<const float *>(p.g)[block.head]);
    fill_factors(factor, g, p.reversed);
  }
  SliceScaler<T, kDim, kSlice> scaler(block);
  const bool scales = !L::kScaleGroup && p.decay != Decay::kNone;
  RingIndex<L::kStages> ring;
  for (int32_t n = 0; n < block.chunks; ++n, ring.next()) {
    // The stages of the other group's chunks need no wait: the state before chunk n - 2 came after all earlier ones
    // were full, so the phase waited for below is the next one of its barrier.
    if (n % kOutputGroups != group) continue;
    const int32_t chunk = block.chunk(p, n);
    const uint32_t stage = block.stage(ring.stage);
    const auto copy = RingIndex<2>::of(n);
    const uint64_t a = tile_descriptor<128>(stage + L::kA), b = tile_descriptor<128>(stage + L::kB);
    const uint64_t c = tile_descriptor<kSlice * 2>(stage + L::kC);
    const uint64_t state = tile_descriptor<kSlice * 2>(block.rounded_state(copy.stage));
    float scores[32], acc[kSlice / 2];

    wait_this_round(block.full(ring.stage), ring);
    if (scales) scaler.read(ring.stage);
    wgmma_begin();
#pragma unroll
    for (int k = 0; k < kDim / 16; ++k) {
      const uint32_t step = k / 4 * kPanel + k % 4 * 32;
      wgmma<T, false, false>(scores, advance(a, step), advance(b, step), k > 0);
    }
    wgmma_commit();
    if (scales) scaler.write(n);
    rows.flush();
    wait_this_round(block.state_full(copy.stage), copy);
    wgmma_begin();
#pragma unroll
    for (int k = 0; k < kDim / 16; ++k) {
      const uint32_t step = k / 4 * kPanel + k % 4 * 32;
      wgmma<T, false, true>(acc, advance(a, step), advance(state, k * kStateStep), k > 0);
    }
    wgmma_commit();

    const ChunkDecay &decay = block.decay(ring.stage);
    if constexpr (kScalar) {
      if (p.reversed) {
        fill_factors<true>(factor, decay.sum, warp);
      } else {
        fill_factors<false>(factor, decay.sum, warp);
      }
    }
    wgmma_wait<1>(scores);
#pragma unroll
    for (int i = 0; i < 32; ++i) scores[i] *= factor[i];
    uint32_t rounded[16];
#pragma unroll
    for (int i = 0; i < 16; ++i) rounded[i] = pack<T>(scores[2 * i], scores[2 * i + 1]);
    const float row_factor[2] = {decay.row[at.row], decay.row[at.row + 8]};

    wgmma_wait<0>(acc);
    warp_arrive(block.state_empty(copy.stage));
#pragma unroll
    for (int i = 0; i < kSlice / 2; ++i) acc[i] *= row_factor[i / 2 % 2];
    wgmma_begin();
#pragma unroll
    for (int k = 0; k < kChunk / 16; ++k) wgmma<T, true>(acc, rounded + 4 * k, advance(c, k * kStateStep));
    wgmma_commit();
    wgmma_wait<0>(acc);
    warp_arrive(block.empty(ring.stage));
    rows.stage(acc, p.scale, y + int64_t(chunk) * kChunk * p.y_strides.token, block.tokens(chunk) - warp * 16);
  }
  rows.flush();
}

}  // namespace lasp::gpu::hopper
