// The forward walk of the delta rule by mma.sync: outputs, states, checkpoints and M.
#pragma once

#include "delta_kept.cuh"
#include "delta_partner.cuh"

namespace lasp::gpu::mma_delta {

template <typename T, int kRows, bool kDecay, int kSplit>
struct ForwardWalk : StateColumns<kRows, kSplit> {
  using S = Stage<kRows>;
  using Columns = StateColumns<kRows, kSplit>;
  using Columns::s, Columns::kOwn, Columns::first_row;
  // With so many rows there are no registers for o while E is found.
  static constexpr bool kLate = kOwn > 128;
  static constexpr int kPairs = kOwn > 128 ? 1 : 4;  // of 8 rows of K that sums are found of at once
  const DeltaForward &p;
  const Place &place;
  const Partner<kSplit> partner;

  __device__ __forceinline__ ForwardWalk(const DeltaForward &pass, const Place &its, uint32_t traded)
      : p(pass), place(its), partner{traded} {}
  __device__ __forceinline__ int columns() const { return place.transition ? p.k.dim : p.v.dim; }
  __device__ __forceinline__ int slice() const {
    return place.slice - (place.transition ? blocks_of_columns(p.v.dim, kSplit) : 0);
  }
  __device__ __forceinline__ int64_t state_at(int64_t index) const {
    return (index * p.heads + place.head) * p.k.dim * columns();
  }
  template <typename F>
  __device__ __forceinline__ void each_there(F f) {
    Columns::each_there(p.k.dim, columns(), slice(), f);
  }
  __device__ __forceinline__ void load() {
    this->clear();
    if (place.transition) {  // the identity enters, nothing is written
      each_there([&](float &x, int, int row, int column) { x = row == column ? 1 : 0; });
    } else if (p.state_in != nullptr) {
      const float *const from = p.state_in + state_at(place.run.state);
      each_there([&](float &x, int at, int, int) { x = from[at]; });
    }
  }
  __device__ __forceinline__ void store_to(float *to, int64_t index) {
    if (to == nullptr || index < 0) return;
    to += state_at(index);
    each_there([&](float &x, int at, int, int) { to[at] = x; });
  }
  __device__ __forceinline__ void store() {
    if (place.transition) return store_to(p.transition, place.run.path);
    store_to(p.state_out, place.run.state);
    store_to(p.edge_state, place.run.ends);
    if (p.segments[place.run.segment].produces[0]) store_to(p.leaving, place.run.path);
  }

  // E of a chunk; o = q S where it has to be found on the way.
  __device__ __forceinline__ void find_errors(Tokens &y, Tokens &o, uint32_t stage) {
    const uint32_t factors = stage + S::kOfFactors, tile = stage + S::kV;
#pragma unroll
    for (int step = 0; step < kOwn / 16; ++step) {
      const int row = first_row() + 16 * step;
      if (row >= p.k.dim) break;
      uint32_t high[4], low[4];
      split<T>(s[2 * step], s[2 * step + 1], high, low);
      multiply_rows<T, kRows, true>(y, high, low, stage + S::kK, row / 16);
      if constexpr (!kLate)
        if (place.outputs) multiply_rows<T, kRows, false>(o, high, low, stage + S::kQ, row / 16);
    }
    partner.add_all(y);
    // Y = v - 2^G k S
#pragma unroll
    for (int j = 0; j < kChunk / 16; ++j) {
      uint32_t v[4] = {};
      if (!place.transition) load_columns<T, kSplit>(v, tile, j);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float(&to)[4] = y[2 * j + i];
        const float2 upper = unpack<T>(v[2 * i]), lower = unpack<T>(v[2 * i + 1]);
        const float2 f = kDecay ? factors_of(factors + kToToken, 2 * j + i) : float2{1, 1};
        to[0] = fmaf(-f.x, to[0], upper.x), to[1] = fmaf(-f.y, to[1], upper.y);
        to[2] = fmaf(-f.x, to[2], lower.x), to[3] = fmaf(-f.y, to[3], lower.y);
      }
    }
    // E = Y + N (beta Y): from the last tokens on, which no others read.
#pragma unroll
    for (int j = kChunk / 16 - 1; j >= 0; --j) {
      uint32_t high[4], low[4];
      split_scaled<T>(y[2 * j], y[2 * j + 1], factors + kBeta, 2 * j, high, low);
#pragma unroll
      for (int i = j; i < kChunk / 16; ++i)
        multiply_block<T, false>(y[2 * i], y[2 * i + 1], high, low, stage + S::kN, i, j);
    }
  }

  __device__ __forceinline__ void take_chunk(uint32_t stage, int n) {
    const uint32_t factors = stage + S::kOfFactors, tile = stage + S::kV;
    const bool keeps = p.checkpoints != nullptr && !place.transition;
    if (keeps && p.own_checkpoints) {
      Keeper<kSplit>(p, place, p.checkpoints, n, false).template put_state<T>(*this);
    } else if (keeps) {
      store_to(static_cast<float *>(p.checkpoints), int64_t{place.run.checkpoint} + n);
    }
    Tokens y = {}, o = {};
    find_errors(y, o, stage);
    __syncwarp();  // the compiler is not to begin one before the other: there are no registers for both
    if (keeps && p.own_checkpoints) Keeper<kSplit>(p, place, p.checkpoints, n, false).template put_tokens<T>(y);
    __syncwarp();
    // U = beta E; o = scale (2^G q S + P U)
    scale_tokens(y, factors + kBeta);
    if (place.outputs) {
      if constexpr (kLate)
#pragma unroll
        for (int step = 0; step < kRows / 16; ++step) {
          if (16 * step >= p.k.dim) break;
          uint32_t high[4], low[4];
          split<T>(s[2 * step], s[2 * step + 1], high, low);
          multiply_rows<T, kRows, false>(o, high, low, stage + S::kQ, step);
        }
      partner.add_own(o);
      if constexpr (kDecay) scale_tokens(o, factors + kToToken);
#pragma unroll
      for (int j = 0; j < kChunk / 16; ++j) {
        uint32_t high[4], low[4];
        split<T>(y[2 * j], y[2 * j + 1], high, low);
#pragma unroll
        for (int i = j; i < kChunk / 16; ++i)
          if (Partner<kSplit>::takes(i))
            multiply_block<T, false>(o[2 * i], o[2 * i + 1], high, low, stage + S::kP, i, j);
      }
      // By way of the warp's columns of v, which have been read.
      store_tokens<T, kSplit>(o, p.scale, tile, p.o, place, p.heads, n, Partner<kSplit>::takes);
    }
    // S' = 2^G_C S + (2^(G_C - G) k)^T U: the sum by tensor cores, but its addition to S in IEEE float32.
    if constexpr (kDecay) scale_tokens(y, factors + kToEnd);
    uint32_t high[kChunk / 16][4], low[kChunk / 16][4];
#pragma unroll
    for (int j = 0; j < kChunk / 16; ++j) split<T>(y[2 * j], y[2 * j + 1], high[j], low[j]);
    const float whole = kDecay ? load_float(factors + kWhole) : 1;
#pragma unroll
    for (int c = 0; c < kOwn / (16 * kPairs); ++c) {
      const int row = first_row() + 16 * kPairs * c;
      if (row >= p.k.dim) break;
      float sum[2 * kPairs][4] = {};
      multiply_tokens<T, kRows, kPairs>(sum, high, low, stage + S::kK, row);
#pragma unroll
      for (int i = 0; i < 2 * kPairs; ++i)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          float &x = s[2 * kPairs * c + i][e];
          x = kDecay ? fmaf(whole, x, sum[i][e]) : x + sum[i][e];
        }
    }
  }
};

template <typename T, int kRows, bool kDecay, int kSplit>
__global__ void __launch_bounds__(threads_of_block(kSplit), kRows > 128 || kSplit > 1 ? 1 : 2)
    forward(const int64_t first, const DeltaForward p, const Slots slots, const int stages) {
  using S = Stage<kRows>;
  extern __shared__ __align__(16) char shared[];
  const int32_t of_states = blocks_of_columns(p.v.dim, kSplit),
                slices = of_states + (p.transition ? blocks_of_columns(p.k.dim, kSplit) : 0);
  __shared__ Place place;  // not in registers, of which a walk has none to spare
  __shared__ uint64_t barriers[Chunks<kRows, kSplit>::kBarriers];
  if (threadIdx.x == 0) {
    Chunks<kRows, kSplit>::begin_barriers(shared_address(barriers));
    place.start(p, first + blockIdx.x, slices);
    place.transition = place.slice >= of_states;
    place.outputs = p.o.data != nullptr && !place.transition;
    place.slow =
        !begins_on_piece(p.k.data) || !begins_on_piece(p.v.data) || (place.outputs && !begins_on_piece(p.q.data));
    const Segment &segment = p.segments[place.run.segment];
    const bool wanted = place.transition
                            ? !segment.begins[0] && !segment.begins[1]
                            : place.outputs || p.checkpoints || p.state_out || (p.leaving && segment.produces[0]) ||
                                  (p.edge_state && place.run.ends >= 0);
    if (!wanted) place.chunks = 0;
  }
  __syncthreads();
  if (place.chunks == 0) return;

  const uint32_t memory = shared_address(shared);
  const Copies<kRows, kSplit> copies{p, place, slots, p.v};
  const Chunks<kRows, kSplit> chunks{copies, memory, shared_address(barriers), stages, false};
  if (kSplit > 1 && threadIdx.x >= kThreads) return chunks.copy();
  chunks.begin();
  ForwardWalk<T, kRows, kDecay, kSplit> walk(p, place, memory + stages * S::kBytes);
  walk.load();
  chunks.take_all(walk);
  walk.store();
}

}  // namespace lasp::gpu::mma_delta
