// Reversed walks of the delta rule: the gradients of states, from a run's last token to its first. The state R is
// the gradient over `scale`, so that do is a left operand as it is.
#include "reversed.h"

#include "bulk.cuh"
#include "channel_walks.h"
#include "passes.h"
#include "reversed_states.cuh"

namespace lasp::gpu::delta_hopper {
namespace reversed_walk {
namespace {

constexpr int kThreads = (kWalkers + 1) * kGroup;
constexpr int kWalkerRegisters = 224, kProducerRegisters = 56;
static_assert(kWalkers * kWalkerRegisters + kProducerRegisters <= 3 * 168);

// A stage: k and q as two panels, do as one for each walker, the chunk's slot.
constexpr int kStages = 3;
constexpr int kK = 0, kQ = 2 * kPanel, kDO = 4 * kPanel, kSlot = 6 * kPanel, kN = kSlot + kPairN,
              kP = kSlot + kPairP, kStageFactors = kSlot + kFactors;
constexpr int kStageBytes = kSlot + round_up(kSlotBytes, 1024);
constexpr int kBytes = kStages * kStageBytes + 16 * kStages;

struct Block {
  uint32_t shared;
  __device__ uint32_t stage(int n) const { return shared + n % kStages * kStageBytes; }
  __device__ uint32_t full(int n) const { return shared + kStages * kStageBytes + 8 * (n % kStages); }
  __device__ uint32_t empty(int n) const { return full(n) + 8 * kStages; }
  // By one thread.
  __device__ void begin(int walkers) const {
    for (int i = 0; i < kStages; ++i)
      hopper::barrier_init(full(i), kGroup), hopper::barrier_init(empty(i), walkers * kGroup);
    hopper::barrier_init_fence();
  }
};

// By the producer warps.
__device__ __forceinline__ void copy_chunks(const DeltaReversed &p, const Place &place, const Block &block,
                                            const Slots &slots, int walkers, const TensorMaps &maps) {
  const Copier copier{p, place,
                      !begins_on_piece(p.k.data) || !begins_on_piece(p.q.data) || !begins_on_piece(p.d_o.data)};
  const int last = place.chunks - 1;
  const char *slot = slots.at(slots.first_of_part(place.index, place.part, place.run) + last, p.heads, place.head);
  const int32_t head_k = copier.head_of(p.k), head_q = copier.head_of(p.q), head = copier.head_of(p.d_o);
  const int first = place.slice * kSlice;
  const bool one = this_thread() == 0;
  for (int n = 0; n < place.chunks; ++n) {
    const int chunk = last - n;
    const uint32_t to = block.stage(n), full = block.full(n);
    wait_before(block.empty(n), n / kStages);
    if (one) {
      expect_bytes(full, kSlotBytes + (chunk < place.boxed ? (4 + walkers) * kPanel : 0));
      copy_bulk(to + kSlot, slot, kSlotBytes, full);
    }
    if (chunk >= place.boxed) {
      const int count = place.run.length - chunk * kChunk;
      copier.rows<kDim, 0>(to + kK, p.k, copier.begin<kDim>(p.k, head_k, chunk), 0, count);
#pragma unroll
      for (int w = 0; w < kWalkers; ++w)
        if (w < walkers)
          copier.rows<kSlice, 0>(to + kDO + w * kPanel, p.d_o,
                                 copier.begin<kSlice>(p.d_o, head, chunk) + 2 * (first + w * kSlice),
                                 first + w * kSlice, count);
      copier.rows<kDim, 0>(to + kQ, p.q, copier.begin<kDim>(p.q, head_q, chunk), 0, count);
    } else if (one) {
      const int32_t token = int32_t(place.run.begin) + chunk * kChunk, row = int32_t(place.run.row);
      copy_boxes<kChunk, 0>(to + kK, maps.k, full, token, head_k, row);
      for (int w = 0; w < walkers; ++w)
        hopper::tma_load_box(to + kDO + w * kPanel, &maps.columns, full, token, 0, head, row, hopper::Keep::kNormal,
                             first + w * kSlice);
      copy_boxes<kChunk, 0>(to + kQ, maps.q, full, token, head_q, row);
    }
    arrive_copies(full, copier.slow);
    slot -= int64_t{p.heads} * slots.bytes;
  }
  copies_wait<0>();
}

template <typename T, bool kDecay>
struct Walker : ReversedStates<T> {
  using States = ReversedStates<T>;
  using States::p, States::place, States::s, States::load, States::store, States::keep;
  const Block &block;
  const int walker;
  const Turns turns;

  // Half of the state; in IEEE float32, which sums over chunks need.
  template <int kFirst>
  __device__ __forceinline__ void add(const float (&sum)[32], float whole) {
#pragma unroll
    for (int i = 0; i < 32; ++i)
      s[kFirst + i] = kDecay ? fmaf(whole, s[kFirst + i], sum[i]) : s[kFirst + i] + sum[i];
  }

  __device__ __forceinline__ void walk() {
    load();
    turns.begin();
    for (int n = 0; n < place.chunks; ++n) {
      const uint32_t stage = block.stage(n), factors = stage + kStageFactors;
      hopper::barrier_wait(block.full(n), n / kStages & 1);
      if (place.chunks - 1 - n >= place.boxed) hopper::fence_async_proxy();  // threads have copied
      float y[32];
      uint32_t d_o[16], x[16], x_low[16];
#pragma unroll
      for (int j = 0; j < 4; ++j)
        load_matrices_transposed(reinterpret_cast<uint32_t(&)[4]>(d_o[4 * j]),
                                 transposed_at(stage + kDO + walker * kPanel, j));
      // dU = 2^(G_C - G) k R + P^T do, then Z = dU + N^T (beta dU).
      {
        uint32_t high[32], low[32];
        split<T, 64>(s, high, low);
        turns.wait();
        hopper::wgmma_begin();
        multiply_state<T>(y, high, low, stage + kK);
      }
      if constexpr (kDecay) {
        hopper::wgmma_commit();
        turns.pass();
        hopper::wgmma_wait<0>(y);
        by_token(factors + kToEnd,
                 [&](int i, float2 f) { y[i] *= f.x, y[i + 1] *= f.y, y[i + 2] *= f.x, y[i + 3] *= f.y; });
        turns.wait();
        hopper::wgmma_begin();
      }
      multiply_upper_of<T, false>(y, d_o, stage + kP);
      multiply_upper_of<T, true>(y, d_o, stage + kP);
      hopper::wgmma_commit();
      turns.pass();
      hopper::wgmma_wait<0>(y);
      keep(place.chunks - 1 - n);
      {
        float scaled[32];
        by_token(factors + kBeta, [&](int i, float2 f) {
          scaled[i] = f.x * y[i], scaled[i + 1] = f.y * y[i + 1];
          scaled[i + 2] = f.x * y[i + 2], scaled[i + 3] = f.y * y[i + 3];
        });
        split<T, 32>(scaled, x, x_low);
      }
      turns.wait();
      hopper::wgmma_begin();
      multiply_upper<T>(y, x, x_low, stage + kN);
      hopper::wgmma_commit();
      // The state's sums: what do adds, then what dv takes away.
      float first[32], second[32];
      uint32_t d_o_low[16];
      if constexpr (kDecay) {  // another turn: there are no registers for the sums before N has been read
        turns.pass();
        by_token(factors + kToToken, [&](int i, float2 f) {
          const float2 upper = unpack<T>(d_o[i / 2]), lower = unpack<T>(d_o[i / 2 + 1]);
          const float scaled[4] = {f.x * upper.x, f.y * upper.y, f.x * lower.x, f.y * lower.y};
          split<T, 4>(scaled, d_o + i / 2, d_o_low + i / 2);
        });
        hopper::wgmma_wait<0>(y);
        turns.wait();
        hopper::wgmma_begin();
      }
      multiply_tokens<T>(first, d_o, stage + kQ, false);
      if constexpr (kDecay) multiply_tokens<T>(first, d_o_low, stage + kQ, true);
      multiply_tokens<T>(second, d_o, stage + kQ + kPanel, false);
      if constexpr (kDecay) multiply_tokens<T>(second, d_o_low, stage + kQ + kPanel, true);
      hopper::wgmma_commit();
      turns.pass();
      if constexpr (!kDecay) hopper::wgmma_wait<1>(y);
      by_token(factors + kBeta,
               [&](int i, float2 f) { y[i] *= -f.x, y[i + 1] *= -f.y, y[i + 2] *= -f.x, y[i + 3] *= -f.y; });
      if constexpr (kDecay) {
        by_token(factors + kToToken,
                 [&](int i, float2 f) { y[i] *= f.x, y[i + 1] *= f.y, y[i + 2] *= f.x, y[i + 3] *= f.y; });
        hopper::wgmma_wait<0>(first);
        pin(second);
      }
      split<T, 32>(y, x, x_low);
      turns.wait();
      hopper::wgmma_begin();
      multiply_tokens<T>(first, second, x, x_low, stage + kK, true);
      hopper::wgmma_commit();
      turns.pass();
      const float whole = load_float(factors + kWhole);
      hopper::wgmma_wait<0>(first);
      pin(second);
      add<0>(first, whole);
      add<32>(second, whole);
      hopper::barrier_arrive(block.empty(n));
    }
    store();
  }
};

template <typename T, bool kDecay>
__global__ void __launch_bounds__(kThreads, 1)
    reversed(const int64_t first, const DeltaReversed p, const Slots slots,
             const __grid_constant__ TensorMaps maps) {
  extern __shared__ __align__(1024) char shared[];
  __shared__ Place place;  // not in registers, of which walkers have none to spare
  __shared__ bool any;
  const Block block{shared_address(shared)};
  const int slices = slices_of(p.v.dim);
  const bool alone = walks_alone(p, slots, slices, 1);
  const int walkers = alone ? 1 : slices;
  if (threadIdx.x == 0) {
    any = find_place(p, slots, alone ? slices : 1, first + blockIdx.x, place), block.begin(walkers);
    place.boxed = maps.fits ? place.run.length / kChunk : 0;
  }
  __syncthreads();
  if (!any) return;
  if (kDecay && slots.for_ends()) {
    if (threadIdx.x < 32) skip_forgotten(p, slots, place, true, place.slice == 0);
    __syncthreads();
  }
  const int group = __shfl_sync(~0u, int(threadIdx.x / kGroup), 0);
  if (group < kWalkers) {
    hopper::take_registers<kWalkerRegisters>();
    if (group < walkers)
      Walker<T, kDecay>{{p, place, slots, place.slice + group, {}}, block, group, {walkers == 2 ? 1 + group : 0}}
          .walk();
  } else {
    hopper::give_registers<kProducerRegisters>();
    copy_chunks(p, place, block, slots, walkers, maps);
  }
}

template <typename T>
int launch(const DeltaReversed &p, const Slots &slots, Stream stream) {
  const auto kernel = p.decay == Decay::kNone ? reversed<T, false> : reversed<T, true>;
  TensorMaps maps{};
  encode_maps(maps, p, p.d_o, true, kChunk);
  const int32_t slices = slices_of(p.v.dim);
  const int64_t blocks = p.num_runs * slots.parts * p.heads * (walks_alone(p, slots, slices, 1) ? slices : 1);
  return launch_blocks(kernel, blocks, kThreads, kBytes, stream, p, slots, maps);
}

}  // namespace
}  // namespace reversed_walk

int launch_reversed(const DeltaReversed &p, const Slots &slots, Stream stream) {
  if (p.decay == Decay::kChannel) return channel::launch_reversed(p, slots, {}, stream);
  return p.dtype == DType::kBFloat16 ? reversed_walk::launch<__nv_bfloat16>(p, slots, stream)
                                     : reversed_walk::launch<__half>(p, slots, stream);
}

int64_t reversed_shared_bytes() { return reversed_walk::kBytes; }

int load_reversed() {
  using namespace reversed_walk;
  for (const auto kernel : {reversed<__nv_bfloat16, false>, reversed<__nv_bfloat16, true>, reversed<__half, false>,
                            reversed<__half, true>})
    if (const int error = load_kernel(kernel, kBytes)) return error;
  return channel::load_reversed();
}

}  // namespace lasp::gpu::delta_hopper
