// Forward walks of the delta rule: outputs, states, checkpoints and what a run does to the state that enters it.
#include "forward.h"

#include "channel_walks.h"
#include "forward_producers.cuh"
#include "forward_states.cuh"
#include "passes.h"

namespace lasp::gpu::delta_hopper {
namespace forward_walk {
namespace {

template <typename T, bool kDecay, Mode kMode>
struct Walker : ChainStates<T, kMode> {
  using States = ChainStates<T, kMode>;
  using States::load, States::store, States::keep, States::keep_state, States::keep_tokens;
  using States::load_row, States::own_column, States::put_tokens;
  using States::p, States::place, States::s, States::kOutputs, States::kStretch;
  const Block &block;
  const int walker;
  const Turns turns;
  const int32_t &whole_chunks;  // of o: the first so many have 64 rows and columns, which begin on 16 bytes

  // Where its first of o is; found once, since that divides.
  __device__ __forceinline__ T *first_output() const {
    return static_cast<T *>(p.o.data) + own_column() +
           offset_of(p.o, place.run.row, place.run.begin + threadIdx.x % 32 / 2, place.head, p.heads);
  }
  // o of a chunk times `scale`, rounded, by way of v's place: of every 16th row this lane's 16 bytes.
  __device__ __forceinline__ void round_outputs(const float (&o)[32], float scale, uint32_t tile,
                                                uint4 (&rows)[4]) const {
    put_tokens(o, scale, tile);
#pragma unroll
    for (int i = 0; i < 4; ++i) rows[i] = load_row(tile, 16 * i);
    __syncwarp();
  }
  // `to`: that of chunk n.
  __device__ __forceinline__ void store_outputs(const uint4 (&rows)[4], T *to, int n) const {
    T *at[4];  // at once: a register waits until the store before has read it
#pragma unroll
    for (int i = 0; i < 4; ++i) at[i] = to + 16 * i * p.o.strides.token;
    if (n < whole_chunks) {
#pragma unroll
      for (int i = 0; i < 4; ++i) hopper::store_global_16(at[i], rows[i]);
      return;
    }
    const int count = own_column() < p.v.dim ? place.run.length - n * kChunk - int(threadIdx.x % 32 / 2) : 0;
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (16 * i < count) store_piece(at[i], rows[i]);
  }
  // Half of the state; in IEEE float32, which sums over chunks need.
  template <int kFirst>
  __device__ __forceinline__ void add(const float (&sum)[32], float whole) {
#pragma unroll
    for (int i = 0; i < 32; ++i)
      s[kFirst + i] = kDecay ? fmaf(whole, s[kFirst + i], sum[i]) : s[kFirst + i] + sum[i];
  }
  // to = y times the factor of each token.
  static __device__ __forceinline__ void scale_tokens(float (&to)[32], const float (&y)[32], uint32_t factors) {
    by_token<kFlip>(factors, [&](int i, float2 f) {
      to[i] = f.x * y[i], to[i + 1] = f.y * y[i + 1], to[i + 2] = f.x * y[i + 2], to[i + 3] = f.y * y[i + 3];
    });
  }

  // Chunk after chunk: S k, Y, E, U, outputs, the sums of the state after it.
  __device__ __forceinline__ void walk() {
    load();
    turns.begin();
    T *to = kOutputs ? first_output() : nullptr;
    for (int n = 0; n < place.chunks; ++n) {
      const uint32_t stage = block.chain(n), factors = stage + kChainFactors, tile = stage + kV + walker * kPanel;
      const uint32_t output = block.output(n);
      hopper::barrier_wait(block.chain_full(n), n / kChainStages & 1);
      if constexpr (kOutputs) hopper::barrier_wait(block.output_full(n), n / kOutputStages & 1);
      if (n >= place.boxed) hopper::fence_async_proxy();  // threads have copied
      float y[32], o[32];
      uint32_t high[32];
      {
        uint32_t low[32];
        split<T, 64>(s, high, low);
        turns.wait();
        hopper::wgmma_begin();
        multiply_state<T>(y, high, low, stage + kK);
        hopper::wgmma_commit();
        if constexpr (kOutputs) {
          multiply_rows<T>(o, high, output + kQ, false);
          hopper::wgmma_commit();
        }
        turns.pass();
      }
      uint32_t v[16];
#pragma unroll
      for (int j = 0; j < 4; ++j)
        load_matrices_transposed(reinterpret_cast<uint32_t(&)[4]>(v[4 * j]), transposed_at(tile, j ^ 3));
      hopper::wgmma_wait<kOutputs>(y);
      if constexpr (kStretch) keep_state(high, block.state(walker, n), n);

      // Y = v - 2^G k S, then E = Y + N (beta Y).
      uint32_t x[16], x_low[16];
      by_token<kFlip>(factors + kToToken, [&](int i, float2 f) {
        const float2 upper = unpack<T>(v[i / 2]), lower = unpack<T>(v[i / 2 + 1]);
        y[i] = kDecay ? fmaf(-f.x, y[i], upper.x) : upper.x - y[i];
        y[i + 1] = kDecay ? fmaf(-f.y, y[i + 1], upper.y) : upper.y - y[i + 1];
        y[i + 2] = kDecay ? fmaf(-f.x, y[i + 2], lower.x) : lower.x - y[i + 2];
        y[i + 3] = kDecay ? fmaf(-f.y, y[i + 3], lower.y) : lower.y - y[i + 3];
      });
      {
        float scaled[32];
        scale_tokens(scaled, y, factors + kBeta);
        split<T, 32>(scaled, x, x_low);
      }
      turns.wait();
      hopper::wgmma_begin();
      multiply_lower<T>(y, x, x_low, stage + kN);
      hopper::wgmma_commit();
      turns.pass();
      hopper::wgmma_wait<0>(y);
      if constexpr (kOutputs) pin(o);
      if constexpr (kStretch) {
        keep_tokens(y, block.tokens(walker), n);
      } else {
        keep(n, tile);
      }

      // U = beta E, o += P U, the state's sum of 2^(G_C - G) U. Where the chunk's decays are narrow, that U serves
      // P too, which has none of them then: o = 2^(G - G_C) (2^G_C q S + P U).
      const bool wide = kDecay && !is_narrow<T>(factors);
      scale_tokens(y, y, factors + kBeta);
      if constexpr (kOutputs) hopper::barrier_wait(block.scores_full(n), n / kOutputStages & 1);
      if (wide) {  // o with a U of its own, in another turn
        if constexpr (kOutputs) {
          scale_tokens(o, o, factors + kToToken);
          split<T, 32>(y, x, x_low);
        }
        turns.wait();
        if constexpr (kOutputs) {
          hopper::wgmma_begin();
          multiply_lower<T>(o, x, x_low, output + kP);
          hopper::wgmma_commit();
        }
        turns.pass();
        if constexpr (kOutputs) {
          uint4 rows[4];
          hopper::wgmma_wait<0>(o);
          round_outputs(o, p.scale, tile, rows);
          store_outputs(rows, to, n);
        }
      }
      if constexpr (kDecay) {
        scale_tokens(y, y, factors + kToEnd);
        if constexpr (kOutputs) {
          const float whole = load_float(factors + kWhole);
#pragma unroll
          for (float &sum : o) sum *= whole;
        }
      }
      split<T, 32>(y, x, x_low);
      turns.wait();
      hopper::wgmma_begin();
      if constexpr (kOutputs) {
        multiply_lower<T>(o, x, x_low, output + kP);
        hopper::wgmma_commit();
      }
      float first[32], second[32];
      multiply_tokens<T>(first, second, x, x_low, stage + kK, false);
      hopper::wgmma_commit();
      turns.pass();
      if constexpr (kOutputs) {
        uint4 rows[4];
        hopper::wgmma_wait<1>(o);
        if constexpr (kDecay) scale_tokens(o, o, factors + kToToken);
        round_outputs(o, kDecay ? p.scale / load_float(factors + kWhole) : p.scale, tile, rows);
        hopper::barrier_arrive(block.output_empty(n));
        if (!wide) store_outputs(rows, to, n);
        to += kChunk * p.o.strides.token;
      }
      const float whole = load_float(factors + kWhole);  // again: no register keeps it
      hopper::wgmma_wait<0>(first);
      pin(second);
      add<0>(first, whole);
      add<32>(second, whole);
      hopper::barrier_arrive(block.chain_empty(n));
    }
    if constexpr (kStretch) {
      wait_stored();
    } else {
      store();
    }
  }
};

// How many blocks a launch of `items` parts has, and which slices they have: `of_block` of each item and head, and
// where Slots::maps_alone those of M behind them.
struct Blocks {
  int32_t of_block, slices;  // slices of a block; of an item and head
  int64_t first_alone, all;  // the first block of M alone
  __host__ __device__ __forceinline__ Blocks(const DeltaForward &p, const Slots &slots, bool stretch,
                                             int64_t items) {
    const int32_t both = all_slices(p, slots.phase, stretch);
    const bool split = slots.maps_alone && slots.phase == Phase::kEnds;
    of_block = !stretch && walks_alone(p, slots, both, 48) ? 1 : kWalkers;
    slices = split ? state_slices(p, slots.phase, stretch) : both;
    first_alone = items * p.heads * ((slices + of_block - 1) / of_block);
    all = first_alone + items * p.heads * (both - slices);
  }
};

// What block b does: a (run, part, head) and one or two slices.
template <bool kStretch>
__device__ __forceinline__ void find_work(const DeltaForward &p, const Slots &slots, const Stretches &kept,
                                          int64_t b, bool boxes, Work &work) {
  const Blocks blocks(p, slots, kStretch, p.num_runs * slots.parts);
  Place &place = work.place;
  work.states = state_slices(p, slots.phase, kStretch);
  const bool alone = b >= blocks.first_alone;
  const int32_t of_block = alone ? 1 : blocks.of_block, before = alone ? blocks.slices : 0;
  const int32_t slices = alone ? all_slices(p, slots.phase, kStretch) : blocks.slices;
  const int32_t each = (slices - before + of_block - 1) / of_block;  // blocks of an item and head
  if (alone) b -= blocks.first_alone;
  place.slice = before + int32_t(b % each) * of_block;
  place.head = int32_t(b / each % p.heads);
  place.item = b / each / p.heads;
  bool any;
  if (kStretch && kept.window.chunks > 0) {
    any = start_window(p, slots, kept.window, p.filter, place);
  } else {
    place.part = int32_t(place.item % slots.parts);
    place.index = place.item / slots.parts;
    any = start_part(p, slots, p.filter, place);
  }
  const bool ends = is_of_ends(slots.phase);
  const auto head_of = [&](const Tensor &t) { return int32_t(int64_t{place.head} * t.heads / p.heads); };
  work.head_k = head_of(p.k), work.head_v = head_of(p.v), work.head_q = head_of(p.q);
  place.boxed = boxes ? place.run.length / kChunk : 0;
  for (int w = 0; w < kWalkers; ++w) {
    const bool exists = w < of_block && place.slice + w < slices;
    work.walks[w] = any && exists && is_walked(p, slots, place, work.transition(w));
    work.outputs[w] = !kStretch && work.walks[w] && p.o.data && !work.transition(w) && !ends;
    const bool even = begins_on_piece(p.o.data) && (place.slice + w + 1) * kSlice <= p.v.dim;
    work.whole_chunks[w] = even ? place.run.length / kChunk : 0;
  }
}

template <typename T, bool kDecay, bool kStretch>
__global__ void __launch_bounds__(kThreads, 1)
    forward(const int64_t first, const DeltaForward p, const Slots slots, const Stretches kept,
            const __grid_constant__ TensorMaps maps) {
  extern __shared__ __align__(1024) char shared[];
  __shared__ Work work;  // not in registers, of which walkers have none to spare
  const Block block{shared_address(shared)};
  if (threadIdx.x == 0) {
    find_work<kStretch>(p, slots, kept, first + blockIdx.x, maps.fits, work);
    block.begin(work.walks[0] + work.walks[1], work.outputs[0] + work.outputs[1]);
  }
  __syncthreads();
  if (!work.walks[0] && !work.walks[1]) return;
  if (kDecay && !kStretch && slots.for_ends()) {
    if (threadIdx.x < 32) work.skip_forgotten(p, slots);
    __syncthreads();
  }
  const int group = __shfl_sync(~0u, int(threadIdx.x / kGroup), 0);
  if (group < kWalkers) {
    hopper::take_registers<kWalkerRegisters>();
    if (!work.walks[group]) return;
    const int32_t slice = work.slice(group);
    const bool transition = work.transition(group);
    const Turns turns{work.walks[0] && work.walks[1] ? 1 + group : 0};
    if constexpr (kStretch) {
      Walker<T, kDecay, Mode::kStretch>{
          {p, work.place, slice, transition, kept, slots, {}}, block, group, turns, work.whole_chunks[group]}
          .walk();
    } else if (work.outputs[group]) {
      Walker<T, kDecay, Mode::kOutputs>{
          {p, work.place, slice, transition, kept, slots, {}}, block, group, turns, work.whole_chunks[group]}
          .walk();
    } else {
      Walker<T, kDecay, Mode::kStates>{
          {p, work.place, slice, transition, kept, slots, {}}, block, group, turns, work.whole_chunks[group]}
          .walk();
    }
  } else {
    hopper::give_registers<kProducerRegisters>();
    Producers<T, kDecay>{p, work, block, maps}.run(slots);
  }
}

template <typename T>
int launch(const DeltaForward &p, const Slots &slots, const Stretches &kept, Stream stream) {
  const int64_t items = kept.window.chunks > 0 ? kept.window.units : p.num_runs * slots.parts;
  const int64_t blocks = Blocks(p, slots, kept.data != nullptr, items).all;
  const bool none = p.decay == Decay::kNone;
  const auto kernel = kept.data ? none ? forward<T, false, true> : forward<T, true, true>
                      : none ? forward<T, false, false>
                                : forward<T, true, false>;
  TensorMaps maps{};
  encode_maps(maps, p, p.v, p.o.data != nullptr, kBoxRows);
  return launch_blocks(kernel, blocks, kThreads, kBytes, stream, p, slots, kept, maps);
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
  return launch_stretches(p, slots, {}, false, stream);
}
int launch_stretches(const DeltaForward &p, const Slots &slots, const Stretches &kept, bool early, Stream stream) {
  if (p.decay == Decay::kChannel) return channel::launch_forward(p, slots, kept, {}, early, stream);
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
