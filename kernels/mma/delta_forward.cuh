// The forward walk of the delta rule by mma.sync: outputs, states, checkpoints and M.
#pragma once

#include "delta_outputs.cuh"

namespace lasp::gpu::mma_delta {

template <typename T, int kRows, bool kDecay, int kSplit>
struct ForwardWalk : StateColumns<kRows, kSplit> {
  using S = Stage<kRows, kSplit>;
  using Columns = StateColumns<kRows, kSplit>;
  using Columns::s, Columns::kOwn, Columns::first_row, Columns::own_rows;
  // With so many rows there are no registers for o while E is found.
  static constexpr bool kLate = kOwn > 128;
  static constexpr int kBy = kSplit > 1 ? 2 : 1;  // steps of 16 rows of K for one test whether there are more
  static constexpr int kPairs = kRowsAtOnce<kOwn, kSplit>;
  const DeltaForward &p;
  const Place &place;
  const Partner<kSplit> partner;
  const Handed<kRows, kSplit> handed;
  const bool hands;  // to warps that help

  __device__ __forceinline__ ForwardWalk(const DeltaForward &pass, const Place &its, uint32_t traded,
                                         const Handed<kRows, kSplit> &its_handed)
      : p(pass), place(its), partner{traded}, handed(its_handed), hands(kSplit > 1 && its.helped) {}
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
  __device__ __forceinline__ void find_errors(Tokens &y, Tokens &o, uint32_t stage, int n) {
    const uint32_t factors = stage + S::kOfFactors, tile = stage + S::kV;
    if (hands && n > 0) wait(handed.state_empty(), n - 1);
#pragma unroll
    for (int step = 0; step < kOwn / 16; ++step) {
      if (step % kBy == 0 && 16 * step >= own_rows(p.k.dim)) break;
      const int row = first_row(p.k.dim) + 16 * step;
      uint32_t high[4], low[4];
      split<T>(s[2 * step], s[2 * step + 1], high, low);
      if (hands) store_shared_16(handed.state_at(step), uint4{high[0], high[1], high[2], high[3]});
      multiply_rows<T, kRows, true>(y, high, low, stage + S::kK, row / 16);
      if constexpr (kSplit == 1 && !kLate)
        if (place.outputs) multiply_rows<T, kRows, false>(o, high, low, stage + S::kQ, row / 16);
    }
    if (hands) arrive(handed.state_full());
    partner.add_all(y, [](int) {});
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

  __device__ __forceinline__ void take_chunk(uint32_t stage, int n, int) {
    const uint32_t factors = stage + S::kOfFactors;
    const bool keeps = p.checkpoints != nullptr && !place.transition, keeps_own = keeps && p.own_checkpoints;
    if (keeps && !keeps_own) store_to(static_cast<float *>(p.checkpoints), int64_t{place.run.checkpoint} + n);
    if (kSplit == 1 && keeps_own) Keeper<kSplit>(p, place, p.checkpoints, n, false).template put_state<T>(*this);
    Tokens y = {}, o = {};
    find_errors(y, o, stage, n);
    __syncwarp();  // the compiler is not to begin one before the other: there are no registers for both
    if constexpr (kSplit > 1) {
      if (hands) {
        if (n > 0) wait(handed.tokens_back(), n - 1);
        handed.leave_tokens(y);
        arrive(handed.tokens_full());
      }
    } else if (keeps_own) {
      Keeper<kSplit>(p, place, p.checkpoints, n, false).template put_tokens<T>(y);
    }
    __syncwarp();
    // U = beta E
    scale_tokens(y, factors + kBeta);
    if (kSplit == 1 && place.outputs) {
      if constexpr (kLate)
#pragma unroll
        for (int step = 0; step < kRows / 16; ++step) {
          if (16 * step >= p.k.dim) break;
          uint32_t high[4], low[4];
          split<T>(s[2 * step], s[2 * step + 1], high, low);
          multiply_rows<T, kRows, false>(o, high, low, stage + S::kQ, step);
        }
      put_outputs<T, kRows, kDecay, kSplit>(p, place, o, y, stage, n);
    }
    // S' = 2^G_C S + (2^(G_C - G) k)^T U: the sum by tensor cores, but its addition to S in IEEE float32.
    if constexpr (kDecay) scale_tokens(y, factors + kToEnd);
    uint32_t high[kChunk / 16][4], low[kChunk / 16][4];
#pragma unroll
    for (int j = 0; j < kChunk / 16; ++j) split<T>(y[2 * j], y[2 * j + 1], high[j], low[j]);
    const float whole = kDecay ? load_float(factors + kWhole) : 1;
#pragma unroll
    for (int c = 0; c < kOwn / (16 * kPairs); ++c) {
      if (16 * kPairs * c >= own_rows(p.k.dim)) break;
      const int row = first_row(p.k.dim) + 16 * kPairs * c;
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
  using S = Stage<kRows, kSplit>;
  extern __shared__ __align__(16) char shared[];
  const int32_t of_states = blocks_of_columns(p.v.dim, kSplit),
                slices = of_states + (p.transition ? blocks_of_columns(p.k.dim, kSplit) : 0);
  __shared__ Place place;  // not in registers, of which a walk has none to spare
  using Chunks = Chunks<kRows, kSplit>;
  using Handed = Handed<kRows, kSplit>;
  __shared__ uint64_t barriers[Chunks::kBarriers + Handed::kBarriers];
  const uint32_t barriers_of_chunks = shared_address(barriers),
                 barriers_of_handed = barriers_of_chunks + 8 * Chunks::kBarriers;
  if (threadIdx.x == 0) {
    const int64_t index = place.start(p, first + blockIdx.x, slices);
    place.slot = slots.first_of(index, 0, place.run);
    place.transition = place.slice >= of_states;
    place.outputs = p.o.data != nullptr && !place.transition;
    place.helped = place.outputs || (p.checkpoints != nullptr && p.own_checkpoints && !place.transition);
    place.slow =
        !begins_on_piece(p.k.data) || !begins_on_piece(p.v.data) || (place.outputs && !begins_on_piece(p.q.data));
    Chunks::begin_barriers(barriers_of_chunks, place.helped ? 2 * kRole : kRole);
    Handed::begin_barriers(barriers_of_handed);
    const Segment &segment = p.segments[place.run.segment];
    const bool wanted = place.transition
                            ? !segment.begins[0] && !segment.begins[1]
                            : place.outputs || p.checkpoints || p.state_out || (p.leaving && segment.produces[0]) ||
                                  (p.edge_state && place.run.ends >= 0);
    if (!wanted) place.chunks = 0;
  }
  __syncthreads();
  if (place.chunks == 0) return;

  const uint32_t memory = shared_address(shared), traded = memory + stages * S::kBytes;
  const Handed handed{traded + Partner<kSplit>::kBytes, barriers_of_handed};
  const Copies<kRows, kSplit> copies{p, place, slots, p.v};
  const Chunks chunks{copies, memory, barriers_of_chunks, stages, false};
  if constexpr (kSplit > 1) {
    if (threadIdx.x >= 2 * kRole) {
      have_registers<kCopyRegisters>();
      return chunks.copy();
    }
    if (threadIdx.x >= kRole) {
      if (!place.helped) return;
      const Place own = place;
      OutputsWalk<T, kRows, kDecay, kSplit> walk{
          p, own, handed, {handed.memory}, place.outputs, p.checkpoints != nullptr && p.own_checkpoints};
      return chunks.take_all(walk);
    }
    have_registers<kWalkRegisters>();
  }
  chunks.begin();
  ForwardWalk<T, kRows, kDecay, kSplit> walk(p, place, traded, handed);
  walk.load();
  chunks.take_all(walk);
  walk.store();
}

}  // namespace lasp::gpu::mma_delta
