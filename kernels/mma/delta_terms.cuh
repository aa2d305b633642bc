// The warps that help the reversed walk of the delta rule by mma.sync in a split block: they find P^T do, of which
// the gradient of U is made, and keep R and Z.
#pragma once

#include "delta_handed.cuh"
#include "delta_kept.cuh"

namespace lasp::gpu::mma_delta {

// y += P^T do, of those 16 tokens that takes(block) names.
template <typename T, int kRows, int kSplit, typename Takes>
__device__ __forceinline__ void add_terms(Tokens &y, uint32_t stage, Takes takes) {
  using S = Stage<kRows, kSplit>;
#pragma unroll
  for (int j = 0; j < kChunk / 16; ++j) {
    uint32_t d_o[4];
    load_columns<T, kSplit>(d_o, stage + S::kV, j);
#pragma unroll
    for (int i = 0; i <= j; ++i)
      if (takes(i)) multiply_block<T, true, false>(y[2 * i], y[2 * i + 1], d_o, d_o, stage + S::kP, i, j);
  }
}

template <typename T, int kRows, int kSplit>
struct TermsWalk {
  using Columns = StateColumns<kRows, kSplit>;
  const DeltaReversed &p;
  const Place &place;
  const Slots &slots;
  const Handed<kRows, kSplit> handed;

  // Of chunk `n`, which is the turn'th.
  __device__ __forceinline__ void take_chunk(uint32_t stage, int n, int turn) {
    const bool keeps = p.d_checkpoints != nullptr && p.own_checkpoints;
    const Keeper<kSplit> keeper(p, place, p.d_checkpoints, n, true);
    Tokens y = {};
    add_terms<T, kRows, kSplit>(y, stage, [&](int block) { return handed.has(2 * block); });
    handed.leave_tokens(y);
    arrive(handed.tokens_back());
    if (keeps) {
      const int first = Columns::first_row(p.k.dim), own = Columns::own_rows(p.k.dim);
      wait(handed.state_full(), turn);
#pragma unroll 2  // no more: walking warps need the instruction cache
      for (int step = 0; 16 * step < own; ++step) {
        const uint4 x = load_shared_16(handed.state_at(step));
        const uint32_t high[4] = {x.x, x.y, x.z, x.w};
        keeper.put_step(first / 8 + 2 * step, high);
      }
      handed.give_states_back();
      if (place.slice == 0) keep_factors(p, place, slots, n);
    }
    wait(handed.tokens_full(), turn);
    if (!keeps) return;
#pragma unroll
    for (int i = 0; i < kTokens8; ++i)
      if (handed.has(i)) handed.take(i, y[i]);
    keeper.template put_tokens<T>(y);
    keeper.template put_rest<T>(y);
  }
};

}  // namespace lasp::gpu::mma_delta
