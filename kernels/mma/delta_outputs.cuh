// Outputs of the forward walk of the delta rule by mma.sync, o = scale (2^G q S + P U), and the warps that find
// them in a split block. Those also keep the states and E.
#pragma once

#include "delta_handed.cuh"
#include "delta_kept.cuh"

namespace lasp::gpu::mma_delta {

// o has q S; y is U. They are stored by way of the warp's columns of v, which have been read.
template <typename T, int kRows, bool kDecay, int kSplit>
__device__ __forceinline__ void put_outputs(const DeltaForward &p, const Place &place, Tokens &o, const Tokens &y,
                                            uint32_t stage, int chunk) {
  using S = Stage<kRows, kSplit>;
  const uint32_t factors = stage + S::kOfFactors;
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
  store_tokens<T, kSplit>(o, p.scale, stage + S::kV, p.o, place, p.heads, chunk, Partner<kSplit>::takes);
}

template <typename T, int kRows, bool kDecay, int kSplit>
struct OutputsWalk {
  using S = Stage<kRows, kSplit>;
  using Columns = StateColumns<kRows, kSplit>;
  const DeltaForward &p;
  const Place &place;
  const Handed<kRows, kSplit> handed;
  const Partner<kSplit, Handed<kRows, kSplit>::kOfState> partner;  // by way of the state, which has been read
  // Not read from shared memory again and again.
  const bool outputs, keeps;

  // Forward a chunk's number is its turn.
  __device__ __forceinline__ void take_chunk(uint32_t stage, int n, int) {
    const Keeper<kSplit> keeper(p, place, p.checkpoints, n, false);
    const int first = Columns::first_row(p.k.dim), own = Columns::own_rows(p.k.dim);
    Tokens o = {};
    wait(handed.state_full(), n);
#pragma unroll 2  // no more: walking warps need the instruction cache
    for (int step = 0; 16 * step < own; ++step) {
      const uint4 x = load_shared_16(handed.state_at(step));
      const uint32_t high[4] = {x.x, x.y, x.z, x.w};
      if (keeps) keeper.put_step(first / 8 + 2 * step, high);
      if (outputs) multiply_rows<T, kRows, false>(o, high, high, stage + S::kQ, first / 16 + step);
    }
    __syncwarp();
    if (outputs) partner.add_own(o);
    handed.give_states_back();
    Tokens y;
    wait(handed.tokens_full(), n);
#pragma unroll
    for (int i = 0; i < kTokens8; ++i) handed.take(i, y[i]);
    arrive(handed.tokens_back());
    if (keeps) keeper.template put_tokens<T>(y);
    if (!outputs) return;
    scale_tokens(y, stage + S::kOfFactors + kBeta);
    put_outputs<T, kRows, kDecay, kSplit>(p, place, o, y, stage, n);
  }
};

}  // namespace lasp::gpu::mma_delta
