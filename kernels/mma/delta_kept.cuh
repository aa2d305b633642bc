// How walks keep of a chunk what its gradients are found from (delta_kept.h).
#pragma once

#include "delta_kept.h"
#include "delta_partner.cuh"

namespace lasp::gpu::mma_delta {

static_assert(delta_checkpoint_tokens(KernelSet::kMma) == kChunk && kKeptFactors == delta_hopper::kFactorBytes);

// Of a warp's columns of V. Two warps with the same columns have a half of K's rows each, and keep a half of the
// tokens each.
template <int kSplit>
struct Keeper {
  char *to;                   // this lane's numbers of the first matrix
  int32_t columns, matrices;  // bytes of 8 columns of V; those of K
  bool there;

  __device__ __forceinline__ Keeper(const DeltaInputs &p, const Place &place, void *kept, int chunk, bool back)
      : columns(kept_columns(p, back)), matrices(p.k.dim / 8) {
    const int first = place.slice * columns_of_block(kSplit) + first_column<kSplit>();
    there = first < p.v.dim;
    to = static_cast<char *>(kept) + kept_at(p, back, int64_t{place.run.checkpoint} + chunk, place.head) +
         first / 8 * columns + 4 * (this_thread() % 32);
  }
  // Of kCount matrices from `from` on those from `begin` to `end`. numbers(i, e): of matrix i and 8 columns, the
  // lower ones or, for e = 2, the higher ones. Column by column and in this order, for fewer registers.
  template <int kCount, typename F>
  __device__ __forceinline__ void put(int from, int begin, int end, F numbers) const {
    char *at = to + from * kMatrix;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int i = 0; i < kCount; ++i)
        if (i >= begin && i < end)
          asm volatile("st.global.u32 [%0], %1;" ::"l"(at + i * kMatrix), "r"(numbers(i, 2 * half)) : "memory");
      at += columns;
    }
  }

  template <typename T, int kRows>
  __device__ __forceinline__ void put_state(const StateColumns<kRows, kSplit> &state) const {
    if (!there) return;
    put<state.kOwn / 8>(state.first_row(8 * matrices) / 8, 0, state.own_rows(8 * matrices) / 8,
                        [&](int i, int e) { return pack<T>(state.s[i][e], state.s[i][e + 1]); });
  }
  // 16 rows of a state, as a left operand.
  __device__ __forceinline__ void put_step(int matrix, const uint32_t (&pairs)[4]) const {
    if (there) put<2>(matrix, 0, 2, [&](int i, int e) { return pairs[2 * i + e / 2]; });
  }
  // numbers(two of a token's columns)
  template <typename F>
  __device__ __forceinline__ void put_tokens(const Tokens &y, int matrix, F numbers) const {
    if (!there) return;
    constexpr int kTokens = kTokens8 / kSplit;
    const int begin = this_half<kSplit>() * kTokens;
    put<kTokens8>(matrix, begin, begin + kTokens, [&](int i, int e) { return numbers(y[i][e], y[i][e + 1]); });
  }
  template <typename T>
  __device__ __forceinline__ void put_tokens(const Tokens &y) const {
    put_tokens(y, matrices, [](float a, float b) { return pack<T>(a, b); });
  }
  template <typename T>
  __device__ __forceinline__ void put_rest(const Tokens &y) const {
    put_tokens(y, matrices + kTokens8, [](float a, float b) { return pack_rest<T>(a, b, pack<T>(a, b)); });
  }
};

// A chunk's factors, by the threads of a role.
__device__ __forceinline__ void keep_factors(const DeltaReversed &p, const Place &place, const Slots &slots,
                                             int chunk) {
  const int at = 16 * (this_thread() % kRole);
  if (at >= delta_hopper::kFactorBytes) return;
  const char *const from = slots.at(place.slot + chunk, p.heads, place.head);
  char *const to = static_cast<char *>(p.d_checkpoints) +
                   kept_at(p, true, int64_t{place.run.checkpoint} + chunk, place.head) + kept_factors(p);
  *reinterpret_cast<uint4 *>(to + at) = *reinterpret_cast<const uint4 *>(from + kFactors + at);
}

}  // namespace lasp::gpu::mma_delta
