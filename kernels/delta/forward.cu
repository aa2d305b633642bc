// Forward walks of the delta rule: outputs, states, checkpoints and what a run does to the state that enters it.
#include "forward.h"

#include "channel_walks.h"
#include "forward_outputs.cuh"
#include "forward_states.cuh"
#include "passes.h"

namespace lasp::gpu::delta_hopper {
namespace forward_walk {
namespace {

template <typename T, bool kDecay, Mode kMode>
struct Chain : ChainStates<T, kMode> {
  using States = ChainStates<T, kMode>;
  using States::load, States::store, States::keep, States::keep_tokens, States::publish;
  using States::p, States::place, States::s, States::kOutputs, States::kStretch;
  const Block &block;

  // Half of the state; in IEEE float32, which sums over chunks need.
  template <int kFirst>
  __device__ __forceinline__ void add(const float (&sum)[32], float whole) {
#pragma unroll
    for (int i = 0; i < 32; ++i)
      s[kFirst + i] = kDecay ? fmaf(whole, s[kFirst + i], sum[i]) : s[kFirst + i] + sum[i];
  }

  // The chain of chunk n's state: S k, Y, E, U, the sums of its end.
  __device__ __forceinline__ void walk() {
    load();
    for (int n = 0; n < place.chunks; ++n) {
      const uint32_t stage = block.chain(n), factors = stage + kChainFactors;
      wait_copies(block.chain_full(n), n / kChainStages);
      float y[32];
      uint32_t high[32];
      multiply_state<T>(y, s, high, stage + kK);
      hopper::wgmma_commit();
      if constexpr (kOutputs) {
        wait_before(block.state_empty(), n);
#pragma unroll
        for (int j = 0; j < 8; ++j) publish(block.state() + j / 4 * kPanel, j % 4, high + 4 * j);
        hopper::fence_async_proxy();
        hopper::barrier_arrive(block.state_full());
      }
      uint32_t v[16];
#pragma unroll
      for (int j = 0; j < 4; ++j)
        load_matrices_transposed(reinterpret_cast<uint32_t(&)[4]>(v[4 * j]), transposed_at(stage + kV, j));
      hopper::wgmma_wait<0>(y);
      keep(high, n);

      // Y = v - 2^G k S, then E = Y + N (beta Y).
      uint32_t x[16], x_low[16];
      by_token(factors + kToToken, [&](int i, float2 f) {
        const float2 upper = unpack<T>(v[i / 2]), lower = unpack<T>(v[i / 2 + 1]);
        y[i] = kDecay ? fmaf(-f.x, y[i], upper.x) : upper.x - y[i];
        y[i + 1] = kDecay ? fmaf(-f.y, y[i + 1], upper.y) : upper.y - y[i + 1];
        y[i + 2] = kDecay ? fmaf(-f.x, y[i + 2], lower.x) : lower.x - y[i + 2];
        y[i + 3] = kDecay ? fmaf(-f.y, y[i + 3], lower.y) : lower.y - y[i + 3];
      });
      float scaled[32];
      by_token(factors + kBeta, [&](int i, float2 f) {
        scaled[i] = f.x * y[i], scaled[i + 1] = f.y * y[i + 1];
        scaled[i + 2] = f.x * y[i + 2], scaled[i + 3] = f.y * y[i + 3];
      });
      split<T, 32>(scaled, x, x_low);
      hopper::wgmma_begin();
      multiply_lower<T>(y, x_low, stage + kN);
      multiply_lower<T>(y, x, stage + kN + kPanel);
      multiply_lower<T>(y, x, stage + kN);
      hopper::wgmma_commit();
      hopper::wgmma_wait<0>(y);
      if constexpr (kStretch) keep_tokens(y, stage + kV, n);

      // U = beta E, and the state's sum of it.
      by_token(factors + kBeta,
               [&](int i, float2 f) { y[i] *= f.x, y[i + 1] *= f.y, y[i + 2] *= f.x, y[i + 3] *= f.y; });
      if constexpr (kDecay)
        by_token(factors + kToEnd, [&](int i, float2 f) {
          scaled[i] = f.x * y[i], scaled[i + 1] = f.y * y[i + 1];
          scaled[i + 2] = f.x * y[i + 2], scaled[i + 3] = f.y * y[i + 3];
        });
      float first[32], second[32];
      const float whole = load_float(factors + kWhole);
      multiply_tokens<T, false>(first, second, kDecay ? scaled : y, x, x_low, stage + kK);
      hopper::wgmma_commit();
      if constexpr (kOutputs) {
        uint32_t u[16], u_low[16];
        if constexpr (kDecay) split<T, 32>(y, u, u_low);
        wait_before(block.u_empty(), n);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          publish(block.u(), j, (kDecay ? u : x) + 4 * j);
          publish(block.u() + kPanel, j, (kDecay ? u_low : x_low) + 4 * j);
        }
        hopper::fence_async_proxy();
        hopper::barrier_arrive(block.u_full());
      }
      hopper::wgmma_wait<0>(first);
      pin(second);
      add<0>(first, whole);
      add<32>(second, whole);
      hopper::barrier_arrive(block.chain_empty(n));
    }
    if constexpr (!kStretch) store();
  }
};

template <typename T, bool kDecay, bool kStretch>
__global__ void __launch_bounds__(kThreads, 1)
    forward(const int64_t first, const DeltaForward p, const Slots slots, const Stretches kept) {
  extern __shared__ __align__(1024) char shared[];
  __shared__ Place place;  // not in registers, of which consumers have none to spare
  Place mine;
  bool transition;
  if (!find_place<kStretch>(p, slots, first + blockIdx.x, mine, transition)) return;
  if (threadIdx.x == 0) place = mine;
  const Block block{shared_address(shared)};
  block.begin();
  const bool ends = slots.phase == Phase::kEnds || slots.phase == Phase::kMaps;
  const bool outputs = !kStretch && p.o.data && !transition && !ends;
  const int group = __shfl_sync(~0u, int(threadIdx.x / kGroup), 0);
  if (group == 0) {
    hopper::take_registers<kChainRegisters>();
    if constexpr (kStretch) {
      Chain<T, kDecay, Mode::kStretch>{{p, place, false, kept, slots, {}}, block}.walk();
    } else if (outputs) {
      Chain<T, kDecay, Mode::kOutputs>{{p, place, false, kept, slots, {}}, block}.walk();
    } else {
      Chain<T, kDecay, Mode::kStates>{{p, place, transition, kept, slots, {}}, block}.walk();
    }
  } else if (group == 1) {
    hopper::give_registers<kOutputRegisters>();
    if constexpr (!kStretch)
      if (outputs) Outputs<T, kDecay, Block>{p, place, block}.run();
  } else {
    hopper::give_registers<kProducerRegisters>();
    Copies{p, place, block, outputs, transition}.run(slots);
  }
}

template <typename T>
int launch(const DeltaForward &p, const Slots &slots, const Stretches &kept, Stream stream) {
  const int64_t blocks = p.num_runs * slots.parts * p.heads * all_slices(p, slots.phase, kept.data != nullptr);
  const bool none = p.decay == Decay::kNone;
  const auto kernel = kept.data ? none ? forward<T, false, true> : forward<T, true, true>
                      : none ? forward<T, false, false>
                                : forward<T, true, false>;
  return launch_blocks(kernel, blocks, kThreads, kBytes, stream, p, slots, kept);
}

template <typename T>
int load() {
  for (const auto kernel :
       {forward<T, false, false>, forward<T, false, true>, forward<T, true, false>, forward<T, true, true>})
    if (const int error = load_kernel(kernel, kBytes)) return error;
  return cudaSuccess;
}

}  // namespace
}  // namespace forward_walk

int launch_forward(const DeltaForward &p, const Slots &slots, Stream stream) {
  return launch_stretches(p, slots, {}, stream);
}
int launch_stretches(const DeltaForward &p, const Slots &slots, const Stretches &kept, Stream stream) {
  if (p.decay == Decay::kChannel) return channel::launch_forward(p, slots, kept, stream);
  return p.dtype == DType::kBFloat16 ? forward_walk::launch<__nv_bfloat16>(p, slots, kept, stream)
                                     : forward_walk::launch<__half>(p, slots, kept, stream);
}

int64_t forward_shared_bytes() { return forward_walk::kBytes; }

int load_forward() {
  if (const int error = channel::load_forward()) return error;
  if (const int error = forward_walk::load<__nv_bfloat16>()) return error;
  return forward_walk::load<__half>();
}

}  // namespace lasp::gpu::delta_hopper
