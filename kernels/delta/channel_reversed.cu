// Reversed walks of the delta rule where decay is per channel: those of reversed.cu, with keys and queries that the
// preparation has scaled. With R the state's gradient over `scale`:
//
//   dU = write R + P^T do | Z = dU + N^T (beta dU) | dv = beta Z | R' = 2^G_C R + query^T do - read^T dv
#include "channel_beside.cuh"
#include "channel_layout.cuh"
#include "channel_walks.h"
#include "passes.h"
#include "reversed_states.cuh"

namespace lasp::gpu::delta_hopper::channel {
namespace {

using reversed_walk::find_place, reversed_walk::ReversedStates;

constexpr int kConsumers = kGroup, kProducers = kGroup, kThreads = kConsumers + kProducers;

// Shared memory. A stage of what a chunk begins with: write in two parts, do, and N, factors and P as a slot has
// them. Of what it ends with: query, read in two parts, 2^G_C.
constexpr int kBeginStages = 2, kOfDO = 2 * kImage, kOfSlot = kOfDO + kPanel, kOfN = kOfSlot + kPairN,
              kOfP = kOfSlot + kPairP, kOfBeta = kOfSlot + kFactors + kBeta,
              kBeginBytes = kOfSlot + round_up(kSlotBytes, 1024);
constexpr int kOfRead = kImage, kOfWhole = 3 * kImage, kEndBytes = kOfWhole + 1024,
              kEndAt = kBeginStages * kBeginBytes;
constexpr int kBarrierAt = kEndAt + kEndBytes, kBarrierCount = 2 * kBeginStages + 2,
              kShared = kBarrierAt + 8 * kBarrierCount;

struct ChannelRing {
  uint32_t shared;
  __device__ uint32_t begin_stage(int n) const { return shared + n % kBeginStages * kBeginBytes; }
  __device__ uint32_t end_stage() const { return shared + kEndAt; }
  __device__ uint32_t barrier(int i) const { return shared + kBarrierAt + 8 * i; }
  __device__ uint32_t begin_full(int n) const { return barrier(n % kBeginStages); }
  __device__ uint32_t begin_empty(int n) const { return barrier(kBeginStages + n % kBeginStages); }
  __device__ uint32_t end_full() const { return barrier(kBarrierCount - 2); }
  __device__ uint32_t end_empty() const { return barrier(kBarrierCount - 1); }
};

// By the producer warps.
__device__ __forceinline__ void produce_channel(const DeltaReversed &p, const Place &place, const ChannelRing &ring,
                                                const Slots &slots, const Beside &beside, const ColumnsMap &map) {
  const bool one = threadIdx.x % kProducers == 0;
  const bool slow = !begins_on_piece(p.d_o.data);
  const int64_t step = int64_t{p.heads} * slots.bytes;
  const int64_t last = slots.first_of_part(place.index, place.part, place.run) + place.chunks - 1;
  const char *slot = slots.at(last, p.heads, place.head);
  Prepared prepared{beside, last * p.heads + place.head, -p.heads, place.chunks};
  const auto to_begin = [&](const char *from, int n) {
    const uint32_t to = ring.begin_stage(n), full = ring.begin_full(n);
    const int chunk = place.chunks - 1 - n;
    const bool boxed = chunk < place.boxed;
    prepared.wait(n);
    wait_before(ring.begin_empty(n), n / kBeginStages);
    if (one) {
      expect_bytes(full, 2 * kImage + kSlotBytes + boxed * kPanel);
      copy_bulk(to, from + kWriteHigh, 2 * kImage, full);
      copy_bulk(to + kOfSlot, from, kSlotBytes, full);
      if (boxed) copy_box(to + kOfDO, map, full, place.head, p, place, chunk);
    }
    if (!boxed) copy_slice<0>(to + kOfDO, p.d_o, place, p.heads, chunk, from, slow);
    arrive_copies(full, slow);
  };
  to_begin(slot, 0);
  for (int n = 0; n < place.chunks; ++n, slot -= step) {
    const uint32_t to = ring.end_stage(), full = ring.end_full();
    wait_before(ring.end_empty(), n);
    if (one) {
      expect_bytes(full, 3 * kImage + kWholeBytes);
      copy_bulk(to, slot + kQuery, kImage, full);
      copy_bulk(to + kOfRead, slot + kReadHigh, 2 * kImage, full);
      copy_bulk(to + kOfWhole, slot + kFactors + kWhole, kWholeBytes, full);
    }
    hopper::barrier_arrive(full);
    if (n + 1 < place.chunks) to_begin(slot - step, n + 1);
  }
  copies_wait<0>();
  wait_for_launch_before();
}

template <typename T>
struct ChannelWalker : ReversedStates<T> {
  using States = ReversedStates<T>;
  using States::p, States::place, States::s, States::load, States::store, States::keep;
  const ChannelRing &ring;

  __device__ __forceinline__ void walk() {
    load();
    for (int n = 0; n < place.chunks; ++n) {
      const uint32_t stage = ring.begin_stage(n), beta = stage + kOfBeta;
      hopper::barrier_wait(ring.begin_full(n), n / kBeginStages & 1);
      if (place.chunks - 1 - n >= place.boxed) hopper::fence_async_proxy();  // threads have copied
      float y[32], w[32];
      uint32_t d_o[16], x[16], x_low[16], high[32];
#pragma unroll
      for (int j = 0; j < 4; ++j)
        load_matrices_transposed(reinterpret_cast<uint32_t(&)[4]>(d_o[4 * j]), transposed_at(stage + kOfDO, j));
      multiply_state<T>(y, s, high, stage, [](int, const uint32_t *) {});
      multiply_upper_of<T, false>(w, d_o, stage + kOfP, false);
      multiply_upper_of<T, true>(w, d_o, stage + kOfP);
      hopper::wgmma_commit();
      hopper::wgmma_wait<0>(y);
      pin(w);
      keep(place.chunks - 1 - n);
#pragma unroll
      for (int i = 0; i < 32; ++i) y[i] += w[i];
      by_token(beta, [&](int i, float2 f) {
        w[i] = f.x * y[i], w[i + 1] = f.y * y[i + 1], w[i + 2] = f.x * y[i + 2], w[i + 3] = f.y * y[i + 3];
      });
      split<T, 32>(w, x, x_low);
      hopper::wgmma_begin();
      multiply_upper<T>(y, x, x_low, stage + kOfN);
      hopper::wgmma_commit();
      hopper::barrier_wait(ring.end_full(), n & 1);
      const uint32_t end = ring.end_stage();
      float first[32], second[32];
      hopper::wgmma_begin();
      delta_hopper::multiply_tokens<T>(first, d_o, end, false);
      delta_hopper::multiply_tokens<T>(second, d_o, end + kPanel, false);
      hopper::wgmma_commit();
      hopper::wgmma_wait<1>(y);
      by_token(beta, [&](int i, float2 f) { y[i] *= -f.x, y[i + 1] *= -f.y, y[i + 2] *= -f.x, y[i + 3] *= -f.y; });
      hopper::barrier_arrive(ring.begin_empty(n));
      channel::multiply_tokens<T, true>(first, second, y, x, x_low, end + kOfRead);
      hopper::wgmma_commit();
      hopper::wgmma_wait<0>(first);
      pin(second);
      add_chunk(s, first, second, end + kOfWhole);
      hopper::barrier_arrive(ring.end_empty());
    }
    store();
  }
};

template <typename T>
__global__ void __launch_bounds__(kThreads, 1)
    reversed_channel(const int64_t first, const DeltaReversed p, const Slots slots, const Beside beside,
                     const __grid_constant__ ColumnsMap map) {
  extern __shared__ __align__(1024) char shared[];
  __shared__ Place place;  // not in registers, of which consumers have none to spare
  Place mine;
  if (!find_place(p, slots, slices_of(p.v.dim), first + blockIdx.x, mine)) return wait_for_launch_before();
  mine.boxed = map.fits ? mine.run.length / kChunk : 0;
  const ChannelRing ring{shared_address(shared)};
  if (threadIdx.x == 0) {
    place = mine;
    for (int i = 0; i < kBarrierCount; ++i) hopper::barrier_init(ring.barrier(i), kConsumers);
    hopper::barrier_init_fence();
  }
  __syncthreads();
  if (threadIdx.x >= kConsumers) {
    produce_channel(p, place, ring, slots, beside, map);
  } else {
    ChannelWalker<T>{{p, place, slots, place.slice, {}}, ring}.walk();
  }
}

template <typename T>
int launch(const DeltaReversed &p, const Slots &slots, const Beside &beside, Stream stream) {
  const int64_t blocks = p.num_runs * slots.parts * p.heads * slices_of(p.v.dim);
  const ColumnsMap map = encode_columns(p, p.d_o);
  if (beside.ready)
    return launch_dependent(reversed_channel<T>, blocks, kThreads, kShared, stream, p, slots, beside, map);
  return launch_blocks(reversed_channel<T>, blocks, kThreads, kShared, stream, p, slots, beside, map);
}

}  // namespace

int launch_reversed(const DeltaReversed &p, const Slots &slots, const Beside &beside, Stream stream) {
  return p.dtype == DType::kBFloat16 ? launch<__nv_bfloat16>(p, slots, beside, stream)
                                     : launch<__half>(p, slots, beside, stream);
}

int64_t reversed_shared_bytes() { return kShared; }

int load_reversed() {
  const int error = load_kernel(reversed_channel<__nv_bfloat16>, kShared);
  return error ? error : load_kernel(reversed_channel<__half>, kShared);
}

}  // namespace lasp::gpu::delta_hopper::channel
