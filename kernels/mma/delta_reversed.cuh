// The reversed walk of the delta rule by mma.sync: the gradients of states, from a run's last token to its first.
// The state R is the gradient over `scale`, so that do is a left operand as it is.
#pragma once

#include "delta_terms.cuh"

namespace lasp::gpu::mma_delta {

template <typename T, int kRows, bool kDecay, int kSplit>
struct ReversedWalk : StateColumns<kRows, kSplit> {
  using S = Stage<kRows, kSplit>;
  using Columns = StateColumns<kRows, kSplit>;
  using Columns::s, Columns::kOwn, Columns::first_row, Columns::own_rows;
  static constexpr int kBy = kSplit > 1 ? 2 : 1;  // steps of 16 rows of K for one test whether there are more
  static constexpr int kPairs = kRowsAtOnce<kOwn, kSplit>;
  const DeltaReversed &p;
  const Place &place;
  const Slots &slots;
  const Partner<kSplit> partner;
  const Handed<kRows, kSplit> handed;

  __device__ __forceinline__ ReversedWalk(const DeltaReversed &pass, const Place &its, const Slots &of_chunks,
                                          uint32_t traded, const Handed<kRows, kSplit> &its_handed)
      : p(pass), place(its), slots(of_chunks), partner{traded}, handed(its_handed) {}
  __device__ __forceinline__ int64_t state_at(int64_t index) const {
    return (index * p.heads + place.head) * p.k.dim * p.d_o.dim;
  }
  template <typename F>
  __device__ __forceinline__ void each_there(F f) {
    Columns::each_there(p.k.dim, p.d_o.dim, place.slice, f);
  }
  __device__ __forceinline__ void load() {
    this->clear();
    if (p.d_state_in == nullptr) return;
    const float *const from = p.d_state_in + state_at(place.run.state);
    const float factor = 1 / p.scale;
    each_there([&](float &x, int at, int, int) { x = from[at]; });  // all on their way before one is used
#pragma unroll
    for (auto &tile : s)
#pragma unroll
      for (float &x : tile) x *= factor;
  }
  __device__ __forceinline__ void store_to(float *to, int64_t index, bool adds) {
    if (to == nullptr || index < 0) return;
    to += state_at(index);
    each_there([&](float &x, int at, int, int) { to[at] = adds ? fmaf(p.scale, x, to[at]) : p.scale * x; });
  }
  __device__ __forceinline__ void store() {
    store_to(p.d_state_out, place.run.state, false);
    store_to(p.d_edge_state, place.run.starts, p.edge_adds);
    if (p.segments[place.run.segment].produces[1]) store_to(p.d_leaving, place.run.path, false);
  }

  // Z of a chunk, over `scale`. hands: the warps that help keep the state.
  __device__ __forceinline__ void find_written(Tokens &y, uint32_t stage, int turn, bool hands) {
    const uint32_t factors = stage + S::kOfFactors;
    // dU = 2^(G_C - G) k R + P^T do
    if (hands && turn > 0) wait(handed.state_empty(), turn - 1);
#pragma unroll
    for (int step = 0; step < kOwn / 16; ++step) {
      if (step % kBy == 0 && 16 * step >= own_rows(p.k.dim)) break;
      const int row = first_row(p.k.dim) + 16 * step;
      uint32_t high[4], low[4];
      split<T>(s[2 * step], s[2 * step + 1], high, low);
      if (hands) store_shared_16(handed.state_at(step), uint4{high[0], high[1], high[2], high[3]});
      multiply_rows<T, kRows, true>(y, high, low, stage + S::kK, row / 16);
    }
    if (hands) arrive(handed.state_full());
    if constexpr (kSplit > 1) {
      wait(handed.tokens_back(), turn);
      partner.add_all(y, [&](int i) {
        const float2 f = kDecay ? factors_of(factors + kToEnd, i) : float2{1, 1};
        float terms[4];
        handed.take(i, terms);
        y[i][0] = fmaf(f.x, y[i][0], terms[0]), y[i][1] = fmaf(f.y, y[i][1], terms[1]);
        y[i][2] = fmaf(f.x, y[i][2], terms[2]), y[i][3] = fmaf(f.y, y[i][3], terms[3]);
      });
    } else {
      if constexpr (kDecay) scale_tokens(y, factors + kToEnd);
      add_terms<T, kRows, kSplit>(y, stage, [](int) { return true; });
    }
    // Z = dU + N^T (beta dU): from the first tokens on, which no others read.
#pragma unroll
    for (int j = 0; j < kChunk / 16; ++j) {
      uint32_t high[4], low[4];
      split_scaled<T>(y[2 * j], y[2 * j + 1], factors + kBeta, 2 * j, high, low);
#pragma unroll
      for (int i = 0; i <= j; ++i) multiply_block<T, true>(y[2 * i], y[2 * i + 1], high, low, stage + S::kN, i, j);
    }
  }

  __device__ __forceinline__ void take_chunk(uint32_t stage, int n, int turn) {
    const uint32_t factors = stage + S::kOfFactors, tile = stage + S::kV;
    const bool keeps = p.d_checkpoints != nullptr && p.own_checkpoints;
    if (!keeps) {
      store_to(static_cast<float *>(p.d_checkpoints), int64_t{place.run.checkpoint} + n, false);
    } else if constexpr (kSplit == 1) {
      Keeper<kSplit>(p, place, p.d_checkpoints, n, true).template put_state<T>(*this);
    }
    Tokens y = {};
    find_written(y, stage, turn, kSplit > 1 && keeps);
    if constexpr (kSplit > 1) {  // both warps have read P^T do
      if (keeps) handed.leave_tokens(y);
      arrive(handed.tokens_full());
    } else if (keeps) {
      const Keeper<kSplit> keeper(p, place, p.d_checkpoints, n, true);
      keeper.template put_tokens<T>(y);
      keeper.template put_rest<T>(y);
      if (place.slice == 0) keep_factors(p, place, slots, n);
    }
    // R' = 2^G_C R + (2^G q)^T do - (2^G k)^T dv, dv = beta Z: the sum by tensor cores, its addition in float32.
    scale_tokens(y, factors + kBeta);
    if constexpr (kDecay) scale_tokens(y, factors + kToToken);
    uint32_t high[kChunk / 16][4], low[kChunk / 16][4], d_o[kChunk / 16][4], d_o_low[kChunk / 16][4];
#pragma unroll
    for (int j = 0; j < kChunk / 16; ++j) {
#pragma unroll
      for (int i = 0; i < 2; ++i)
#pragma unroll
        for (float &x : y[2 * j + i]) x = -x;
      split<T>(y[2 * j], y[2 * j + 1], high[j], low[j]);
      load_columns<T, kSplit>(d_o[j], tile, j);
      if constexpr (kDecay)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          d_o[j][i] = mma::scale_pair<T>(d_o[j][i], factors_of(factors + kToToken, 2 * j + i / 2), &d_o_low[j][i]);
    }
    const float whole = kDecay ? load_float(factors + kWhole) : 1;
#pragma unroll
    for (int c = 0; c < kOwn / (16 * kPairs); ++c) {
      if (16 * kPairs * c >= own_rows(p.k.dim)) break;
      const int row = first_row(p.k.dim) + 16 * kPairs * c;
      float sum[2 * kPairs][4] = {};
      multiply_tokens<T, kRows, kPairs, kDecay>(sum, d_o, d_o_low, stage + S::kQ, row);
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
    reversed(const int64_t first, const DeltaReversed p, const Slots slots, const int stages) {
  using S = Stage<kRows, kSplit>;
  extern __shared__ __align__(16) char shared[];
  const int32_t slices = blocks_of_columns(p.d_o.dim, kSplit);
  __shared__ Place place;
  using Chunks = Chunks<kRows, kSplit>;
  using Handed = Handed<kRows, kSplit>;
  __shared__ uint64_t barriers[Chunks::kBarriers + Handed::kBarriers];
  const uint32_t barriers_of_chunks = shared_address(barriers),
                 barriers_of_handed = barriers_of_chunks + 8 * Chunks::kBarriers;
  if (threadIdx.x == 0) {
    Chunks::begin_barriers(barriers_of_chunks, 2 * kRole);
    Handed::begin_barriers(barriers_of_handed);
    const int64_t index = place.start(p, first + blockIdx.x, slices);
    place.slot = slots.first_of(index, 0, place.run);
    place.outputs = true;
    place.slow = !begins_on_piece(p.k.data) || !begins_on_piece(p.d_o.data) || !begins_on_piece(p.q.data);
    const bool wanted = p.d_checkpoints || p.d_state_out ||
                        (p.d_leaving && p.segments[place.run.segment].produces[1]) ||
                        (p.d_edge_state && place.run.starts >= 0);
    if (!wanted) place.chunks = 0;
  }
  __syncthreads();
  if (place.chunks == 0) return;
  const uint32_t memory = shared_address(shared), traded = memory + stages * S::kBytes;
  const Handed handed{traded + Partner<kSplit>::kBytes, barriers_of_handed};
  const Copies<kRows, kSplit> copies{p, place, slots, p.d_o};
  const Chunks chunks{copies, memory, barriers_of_chunks, stages, true};
  if constexpr (kSplit > 1) {
    if (threadIdx.x >= 2 * kRole) {
      have_registers<kCopyRegisters>();
      return chunks.copy();
    }
    if (threadIdx.x >= kRole) {
      const Place own = place;
      TermsWalk<T, kRows, kSplit> walk{p, own, slots, handed};
      return chunks.take_all(walk);
    }
    have_registers<kWalkRegisters>();
  }
  chunks.begin();
  ReversedWalk<T, kRows, kDecay, kSplit> walk(p, place, slots, traded, handed);
  walk.load();
  chunks.take_all(walk);
  walk.store();
}

}  // namespace lasp::gpu::mma_delta
