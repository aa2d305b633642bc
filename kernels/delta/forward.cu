// Forward walks of the delta rule: outputs, states, checkpoints and what a run does to the state that enters it.
#include "forward.h"

#include "forward_outputs.cuh"
#include "passes.h"

namespace lasp::gpu::delta_hopper {
namespace forward_walk {
namespace {

// What a walk is for: outputs, states alone, or the states and E of a stretch's chunks for its gradients.
enum class Mode { kOutputs, kStates, kStretch };

template <typename T, bool kDecay, Mode kMode>
struct Chain {
  static constexpr bool kOutputs = kMode == Mode::kOutputs, kStretch = kMode == Mode::kStretch;
  const DeltaForward &p;
  const Place &place;
  const Block &block;
  const bool transition;  // walks M: the identity enters, nothing is written
  const Stretches &kept;
  const Slots &slots;
  float s[64];

  __device__ __forceinline__ int column() const { return place.slice * kSlice; }
  // Walks a part for what it leaves, whatever enters it.
  __device__ __forceinline__ bool ends() const {
    return slots.phase == Phase::kEnds || slots.phase == Phase::kMaps;
  }
  // What is kept of a part, of this block's head.
  __device__ __forceinline__ float *kept_of(float *parts, int32_t part) const {
    return parts + slots.state_of(place.index, part, p.heads, place.head);
  }

  __device__ __forceinline__ void load() {
    if constexpr (kStretch) {
      const int64_t index = int64_t{place.run.checkpoint} * p.heads + place.head;
      load_slice(s, static_cast<const T *>(kept.checkpoints) + index * p.k.dim * p.v.dim, p.k.dim, p.v.dim,
                 place.slice);
    } else if (place.part > 0 && !ends()) {
      const float *const from = kept_of(transition ? slots.totals : slots.states, place.part - 1) + column();
      each_of_state([&](int i, int row, int v) { s[i] = from[row * kDim + v]; });
    } else if (transition) {
      each_of_state([&](int i, int row, int v) { s[i] = row == column() + v ? 1 : 0; });
    } else if (p.state_in && place.part == 0) {
      const int64_t index = place.run.state * p.heads + place.head;
      load_slice(s, p.state_in + index * p.k.dim * p.v.dim, p.k.dim, p.v.dim, place.slice);
    } else {
      each_of_state([&](int i, int, int) { s[i] = 0; });
    }
  }
  __device__ __forceinline__ void store_to(float *to, int64_t index) {
    if (!to) return;
    const int columns = transition ? p.k.dim : p.v.dim;
    to += (index * p.heads + place.head) * p.k.dim * columns;
    store_slice(to, p.k.dim, columns, place.slice, [&](int i) { return s[i]; });
  }
  __device__ __forceinline__ void store() {
    if (ends()) {
      float *const to = kept_of(transition ? slots.maps : slots.states, place.part);
      const bool transposed = transition && slots.phase == Phase::kEnds;
      const int of_row = transposed ? 1 : kDim, of_column = transposed ? kDim : 1;
      each_of_state([&](int i, int row, int v) { to[row * of_row + (column() + v) * of_column] = s[i]; });
      return;
    }
    if (place.after) return;
    if (transition) return store_to(p.transition, place.run.path);
    store_to(p.state_out, place.run.state);
    if (place.run.ends >= 0) store_to(p.edge_state, place.run.ends);
    if (p.leaving && p.segments[place.run.segment].produces[0]) store_to(p.leaving, place.run.path);
  }

  // Chunk n's E.
  __device__ __forceinline__ void keep_tokens(const float (&e)[32], uint32_t stage, int n) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      uint32_t x[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) x[i] = pack<T>(e[8 * j + 2 * i], e[8 * j + 2 * i + 1]);
      store_matrices_transposed(transposed_at(stage + kV, j), x);
    }
    __syncwarp();
    char *const to = kept.tokens_of(place.index * p.heads + place.head, n) + lane / 2 * 256 +
                     (column() + 16 * warp + lane % 2 * 8) * 2;
#pragma unroll
    for (int i = 0; i < 4; ++i)
      hopper::store_global_16(to + i * 16 * 256,
                              load_shared_16(stage + kV + swizzled((16 * i ^ 48) + lane / 2, 2 * warp + lane % 2)));
    __syncwarp();
  }

  __device__ __forceinline__ void keep(const uint32_t (&high)[32], int n) {
    if constexpr (kStretch) {
      store_rounded<T>(reinterpret_cast<T *>(kept.states_of(place.index * p.heads + place.head, n)), high, kDim,
                       kDim, place.slice);
      return;
    }
    constexpr int kEvery = delta_checkpoint_tokens(KernelSet::kHopper) / kChunk;
    if (!p.checkpoints || transition || n % kEvery || ends()) return;
    const int64_t index = (int64_t{place.run.checkpoint} + n / kEvery) * p.heads + place.head;
    store_rounded<T>(static_cast<T *>(p.checkpoints) + index * p.k.dim * p.v.dim, high, p.k.dim, p.v.dim,
                     place.slice);
  }

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
      if constexpr (kStretch) keep_tokens(y, stage, n);

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

  // Left operands of 16 columns to a panel of rows of V's columns.
  __device__ __forceinline__ void publish(uint32_t panel, int j, const uint32_t *x) const {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    hopper::store_matrices(panel + swizzled(16 * warp + lane % 16, 2 * j + lane / 16), x[0], x[1], x[2], x[3]);
  }
  static __device__ __forceinline__ void store_matrices_transposed(uint32_t to, const uint32_t (&x)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(x[0]),
                 "r"(x[1]), "r"(x[2]), "r"(x[3])
                 : "memory");
  }
};

// How many slices of states a launch has for each part, and with those of M.
// What is kept of stretches has 128 columns, be they zero.
__host__ __device__ __forceinline__ int32_t state_slices(const DeltaForward &p, Phase phase, bool stretch) {
  return phase == Phase::kMaps ? 0 : (stretch ? kDim : p.v.dim) / kSlice;
}
__host__ __device__ __forceinline__ int32_t all_slices(const DeltaForward &p, Phase phase, bool stretch) {
  const bool maps = phase == Phase::kEnds || phase == Phase::kMaps || p.transition;
  return state_slices(p, phase, stretch) + (maps ? p.k.dim / kSlice : 0);
}

// Which (run, part, head, slice) block b has, slices of M after those of V; false: none.
template <bool kStretch>
__device__ __forceinline__ bool find_place(const DeltaForward &p, const Slots &slots, int64_t b, Place &place,
                                           bool &transition) {
  const Phase phase = slots.phase;
  const int32_t slices = all_slices(p, phase, kStretch), slice = int32_t(b % slices);
  const int32_t of_states = state_slices(p, phase, kStretch);
  transition = slice >= of_states;
  place.slice = transition ? slice - of_states : slice;
  place.head = int32_t(b / slices % p.heads);
  place.part = int32_t(b / slices / p.heads % slots.parts);
  place.index = b / slices / p.heads / slots.parts;
  if (!start_part(p, slots, p.filter, place)) return false;
  if (phase == Phase::kEnds || phase == Phase::kMaps)  // of a run's first part M is wanted for the run's own alone
    return place.after && (!transition || place.part > 0 || p.transition);
  if (phase == Phase::kResults && place.after && (transition || (!p.o.data && !p.checkpoints))) return false;
  if (transition) {
    const Segment &segment = p.segments[place.run.segment];
    if (segment.begins[0] || segment.begins[1]) return false;
  }
  return true;
}

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
      Chain<T, kDecay, Mode::kStretch>{p, place, block, false, kept, slots, {}}.walk();
    } else if (outputs) {
      Chain<T, kDecay, Mode::kOutputs>{p, place, block, false, kept, slots, {}}.walk();
    } else {
      Chain<T, kDecay, Mode::kStates>{p, place, block, transition, kept, slots, {}}.walk();
    }
  } else if (group == 1) {
    hopper::give_registers<kOutputRegisters>();
    if constexpr (!kStretch)
      if (outputs) Outputs<T, kDecay>{p, place, block}.run();
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
  return p.dtype == DType::kBFloat16 ? forward_walk::launch<__nv_bfloat16>(p, slots, kept, stream)
                                     : forward_walk::launch<__half>(p, slots, kept, stream);
}

int64_t forward_shared_bytes() { return forward_walk::kBytes; }

int load_forward() {
  if (const int error = forward_walk::load<__nv_bfloat16>()) return error;
  return forward_walk::load<__half>();
}

}  // namespace lasp::gpu::delta_hopper
