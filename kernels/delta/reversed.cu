// Reversed walks of the delta rule: the gradients of states, from a run's last token to its first. The state R is
// the gradient over `scale`, so that do is a left operand as it is.
#include "reversed.h"

#include "channel_walks.h"
#include "passes.h"
#include "reversed_states.cuh"

namespace lasp::gpu::delta_hopper {
namespace {

using namespace reversed_walk;

template <typename T, bool kDecay>
struct Walker : ReversedStates<T> {
  using States = ReversedStates<T>;
  using States::p, States::place, States::s, States::load, States::store, States::keep;
  const Ring &ring;

  // Half of the state; in IEEE float32, which sums over chunks need.
  template <int kFirst>
  __device__ __forceinline__ void add(const float (&sum)[32], float whole) {
#pragma unroll
    for (int i = 0; i < 32; ++i)
      s[kFirst + i] = kDecay ? fmaf(whole, s[kFirst + i], sum[i]) : s[kFirst + i] + sum[i];
  }

  __device__ __forceinline__ void walk() {
    load();
    for (int n = 0; n < place.chunks; ++n) {
      const uint32_t stage = ring.stage(n % kStages), factors = stage + kStageFactors;
      hopper::barrier_wait(ring.full(n % kStages), n / kStages & 1);
      float y[32], w[32];
      uint32_t d_o[16], x[16], x_low[16];
#pragma unroll
      for (int j = 0; j < 4; ++j)
        load_matrices_transposed(reinterpret_cast<uint32_t(&)[4]>(d_o[4 * j]), transposed_at(stage + kV, j));
      uint32_t high[32];
      multiply_state<T>(y, s, high, stage + kK);
      multiply_upper<T>(w, d_o, stage + kSquares + 2 * kPanel, false);
      multiply_upper<T>(w, d_o, stage + kSquares + 3 * kPanel);
      hopper::wgmma_commit();
      hopper::wgmma_wait<0>(y);
      pin(w);
      keep(place.chunks - 1 - n);
      // dU = 2^(G_C - G) k R + P^T do, then Z = dU + N^T (beta dU).
      if constexpr (kDecay) {
        by_token(factors + kToEnd, [&](int i, float2 f) {
          y[i] = fmaf(f.x, y[i], w[i]), y[i + 1] = fmaf(f.y, y[i + 1], w[i + 1]);
          y[i + 2] = fmaf(f.x, y[i + 2], w[i + 2]), y[i + 3] = fmaf(f.y, y[i + 3], w[i + 3]);
        });
      } else {
#pragma unroll
        for (int i = 0; i < 32; ++i) y[i] += w[i];
      }
      by_token(factors + kBeta, [&](int i, float2 f) {
        w[i] = f.x * y[i], w[i + 1] = f.y * y[i + 1], w[i + 2] = f.x * y[i + 2], w[i + 3] = f.y * y[i + 3];
      });
      split<T, 32>(w, x, x_low);
      hopper::wgmma_begin();
      multiply_upper<T>(y, x_low, stage + kSquares);
      multiply_upper<T>(y, x, stage + kSquares + kPanel);
      multiply_upper<T>(y, x, stage + kSquares);
      hopper::wgmma_commit();
      // The state's sums: what do adds, then what dv takes away.
      float first[32], second[32];
      uint32_t d_o_low[16];
      if constexpr (kDecay) {
        by_token(factors + kToToken, [&](int i, float2 f) {
          const float2 upper = unpack<T>(d_o[i / 2]), lower = unpack<T>(d_o[i / 2 + 1]);
          const float scaled[4] = {f.x * upper.x, f.y * upper.y, f.x * lower.x, f.y * lower.y};
          split<T, 4>(scaled, d_o + i / 2, d_o_low + i / 2);
        });
      }
      hopper::wgmma_begin();
      multiply_tokens<T>(first, d_o, stage + kQ, false);
      if constexpr (kDecay) multiply_tokens<T>(first, d_o_low, stage + kQ, true);
      multiply_tokens<T>(second, d_o, stage + kQ + kPanel, false);
      if constexpr (kDecay) multiply_tokens<T>(second, d_o_low, stage + kQ + kPanel, true);
      hopper::wgmma_commit();
      hopper::wgmma_wait<1>(y);
      by_token(factors + kBeta,
               [&](int i, float2 f) { y[i] *= f.x, y[i + 1] *= f.y, y[i + 2] *= f.x, y[i + 3] *= f.y; });
      if constexpr (kDecay)
        by_token(factors + kToToken,
                 [&](int i, float2 f) { y[i] *= f.x, y[i + 1] *= f.y, y[i + 2] *= f.x, y[i + 3] *= f.y; });
#pragma unroll
      for (int i = 0; i < 32; ++i) y[i] = -y[i];
      multiply_tokens<T, true>(first, second, y, x, x_low, stage + kK);
      hopper::wgmma_commit();
      const float whole = load_float(factors + kWhole);
      hopper::wgmma_wait<0>(first);
      pin(second);
      add<0>(first, whole);
      add<32>(second, whole);
      hopper::barrier_arrive(ring.empty(n % kStages));
    }
    store();
  }
};

template <typename T, bool kDecay>
__global__ void __launch_bounds__(kThreads, 1)
    reversed(const int64_t first, const DeltaReversed p, const Slots slots) {
  extern __shared__ __align__(1024) char shared[];
  __shared__ Place place;  // not in registers, of which consumers have none to spare
  Place mine;
  if (!find_place(p, slots, first + blockIdx.x, mine)) return;
  if (threadIdx.x == 0) place = mine;
  const Ring ring = Ring::make(shared);
  if (threadIdx.x >= kConsumers) {
    produce<true>(ring, p, slots, p.d_o, place, true);
  } else {
    Walker<T, kDecay>{{p, place, slots, {}}, ring}.walk();
  }
}

template <typename T>
int launch(const DeltaReversed &p, const Slots &slots, Stream stream) {
  const int64_t blocks = p.num_runs * slots.parts * p.heads * p.v.dim / kSlice;
  const auto kernel = p.decay == Decay::kNone ? reversed<T, false> : reversed<T, true>;
  return launch_blocks(kernel, blocks, kThreads, kSharedBytes, stream, p, slots);
}

}  // namespace

int launch_reversed(const DeltaReversed &p, const Slots &slots, Stream stream) {
  if (p.decay == Decay::kChannel) return channel::launch_reversed(p, slots, stream);
  return p.dtype == DType::kBFloat16 ? launch<__nv_bfloat16>(p, slots, stream) : launch<__half>(p, slots, stream);
}

int64_t reversed_shared_bytes() { return kSharedBytes; }

int load_reversed() {
  for (const int error :
       {load_kernel(reversed<__nv_bfloat16, false>, kSharedBytes),
        load_kernel(reversed<__nv_bfloat16, true>, kSharedBytes),
        load_kernel(reversed<__half, false>, kSharedBytes), load_kernel(reversed<__half, true>, kSharedBytes)})
    if (error) return error;
  return channel::load_reversed();
}

}  // namespace lasp::gpu::delta_hopper
