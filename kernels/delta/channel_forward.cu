// Forward walks of the delta rule where decay is per channel: those of forward.cu, with keys and queries that the
// preparation has scaled.
//
//   Y = v - read S | E = Y + N (beta Y) | U = beta E | S' = 2^G_C S + write^T U      o = scale (query S + P U)
#include "channel_beside.cuh"
#include "channel_layout.cuh"
#include "channel_walks.h"
#include "forward_states.cuh"
#include "passes.h"

namespace lasp::gpu::delta_hopper::channel {
namespace {

using forward_walk::ChainStates, forward_walk::Mode, forward_walk::all_slices, forward_walk::find_place;

// A warpgroup walks a slice of the state and finds its outputs, another takes these to memory, a third copies.
constexpr int kThreads = 3 * kGroup, kFlip = 48;
constexpr int kChainRegisters = 240, kStoreRegisters = 72, kCopyRegisters = 96;
static_assert(kChainRegisters + kStoreRegisters + kCopyRegisters <= 3 * 168);

// Shared memory. A stage of what a chunk begins with: read in two parts and query, in flipped order; v, later the
// chunk's o; N, factors and P as a slot has them, without outputs up to beta. Of what it ends with: write in two
// parts, 2^G_C.
constexpr int kSlotToBeta = kFactors - kPairN + kWhole;  // bytes
constexpr int kBeginStages = 2, kOfQuery = 2 * kImage, kOfV = kOfQuery + kImage, kOfN = kOfV + kPanel,
              kOfP = kOfN + kPairP, kOfBeta = kOfN + kFactors - kPairN + kBeta,
              kBeginBytes = kOfN + round_up(kSlotBytes, 1024);
constexpr int kOfWhole = 2 * kImage, kEndBytes = kOfWhole + 1024, kEndAt = kBeginStages * kBeginBytes;
constexpr int kBarrierAt = kEndAt + kEndBytes, kBarrierCount = 3 * kBeginStages + 2,
              kShared = kBarrierAt + 8 * kBarrierCount;

struct ChannelBlock {
  uint32_t shared;
  __device__ uint32_t begin_stage(int n) const { return shared + n % kBeginStages * kBeginBytes; }
  __device__ uint32_t end_stage() const { return shared + kEndAt; }
  __device__ uint32_t barrier(int i) const { return shared + kBarrierAt + 8 * i; }
  __device__ uint32_t begin_full(int n) const { return barrier(n % kBeginStages); }
  __device__ uint32_t begin_empty(int n) const { return barrier(kBeginStages + n % kBeginStages); }
  __device__ uint32_t output_full(int n) const { return barrier(2 * kBeginStages + n % kBeginStages); }
  __device__ uint32_t end_full() const { return barrier(kBarrierCount - 2); }
  __device__ uint32_t end_empty() const { return barrier(kBarrierCount - 1); }

  // By all threads. With outputs a stage is free when these have left it.
  __device__ void begin() const {
    if (threadIdx.x == 0) {
      for (int i = 0; i < kBarrierCount; ++i) hopper::barrier_init(barrier(i), kGroup);
      hopper::barrier_init_fence();
    }
    __syncthreads();
  }
};

// Images of a slot, by one thread, with the blocks of 16 tokens in flipped order.
template <int kCount>
__device__ __forceinline__ void copy_flipped(uint32_t to, const char *from, uint32_t barrier) {
#pragma unroll
  for (int at = 0; at < kCount * kImage; at += 16 * 128)
    copy_bulk(to + (at ^ kFlip * 128), from + at, 16 * 128, barrier);
}

// The producer warps.
struct ChannelCopies {
  const DeltaForward &p;
  const Place &place;
  const ChannelBlock &block;
  const ColumnsMap &map;
  const bool outputs, no_v;
  const bool slow = !no_v && !begins_on_piece(p.v.data);
  const bool one = threadIdx.x % kGroup == 0;
  const int32_t head_v = int32_t(int64_t{place.head} * p.v.heads / p.heads);

  __device__ __forceinline__ void to_begin(const char *slot, int n) const {
    const uint32_t to = block.begin_stage(n), full = block.begin_full(n);
    const bool boxed = n < place.boxed;
    wait_before(block.begin_empty(n), n / kBeginStages);
    if (one) {
      hopper::fence_async_proxy();  // o may have been written where v was
      const int of_slot = outputs ? kSlotBytes : kSlotToBeta;
      expect_bytes(full, 2 * kImage + of_slot + boxed * kPanel + outputs * kImage);
      copy_flipped<2>(to, slot + kReadHigh, full);
      copy_bulk(to + kOfN, slot + kPairN, of_slot, full);
      if (boxed) copy_box(to + kOfV, map, full, head_v, p, place, n, no_v);
      if (outputs) copy_flipped<1>(to + kOfQuery, slot + kQuery, full);
    }
    if (!boxed) {
      Tensor v = p.v;
      if (no_v) v.data = nullptr;
      copy_slice<0>(to + kOfV, v, place, p.heads, n, slot, slow);
    }
    arrive_copies(full, slow);
  }
  __device__ __forceinline__ void to_end(const char *slot, int n) const {
    const uint32_t to = block.end_stage(), full = block.end_full();
    wait_before(block.end_empty(), n);
    if (one) {
      expect_bytes(full, 2 * kImage + kWholeBytes);
      copy_bulk(to, slot + kWriteHigh, 2 * kImage, full);
      copy_bulk(to + kOfWhole, slot + kFactors + kWhole, kWholeBytes, full);
    }
    hopper::barrier_arrive(full);
  }
  __device__ __forceinline__ void run(const Slots &slots, const Beside &beside) const {
    const int64_t first = slots.first_of_part(place.index, place.part, place.run);
    const char *slot = slots.at(first, p.heads, place.head);
    const int64_t step = int64_t{p.heads} * slots.bytes;
    Prepared prepared{beside, first * p.heads + place.head, p.heads, place.chunks};
    prepared.wait(0);
    to_begin(slot, 0);
    for (int n = 0; n < place.chunks; ++n, slot += step) {
      to_end(slot, n);
      if (n + 1 < place.chunks) prepared.wait(n + 1), to_begin(slot + step, n + 1);
    }
    copies_wait<0>();
    wait_for_launch_before();
  }
};

template <typename T, Mode kMode>
struct ChannelChain : ChainStates<T, kMode> {
  using States = ChainStates<T, kMode>;
  using States::load, States::store, States::keep, States::keep_state, States::keep_tokens, States::put_tokens;
  using States::p, States::place, States::s, States::kOutputs, States::kStretch;
  const ChannelBlock &block;

  __device__ __forceinline__ void walk() {
    load();
    for (int n = 0; n < place.chunks; ++n) {
      const uint32_t stage = block.begin_stage(n), beta = stage + kOfBeta;
      hopper::barrier_wait(block.begin_full(n), n / kBeginStages & 1);
      if (n >= place.boxed) hopper::fence_async_proxy();  // threads have copied
      float y[32], o[32];
      uint32_t high[32];
      multiply_state<T>(y, s, high, stage, [&](int step, const uint32_t *state) {
        if constexpr (kOutputs) multiply<T, 64, false>(o, state, state_rows(stage + kOfQuery, step), step > 0);
      });
      hopper::wgmma_commit();
      uint32_t v[16];
#pragma unroll
      for (int j = 0; j < 4; ++j)
        load_matrices_transposed(reinterpret_cast<uint32_t(&)[4]>(v[4 * j]), transposed_at(stage + kOfV, j ^ 3));
      hopper::wgmma_wait<0>(y);
      if constexpr (kOutputs) pin(o);
      if constexpr (kStretch) {
        keep_state(high, stage + kOfQuery, n);
      } else {
        keep(n, stage + kOfV);
      }

      uint32_t x[16], x_low[16];
      float scaled[32];
      by_token<kFlip>(beta, [&](int i, float2 f) {
        const float2 upper = unpack<T>(v[i / 2]), lower = unpack<T>(v[i / 2 + 1]);
        y[i] = upper.x - y[i], y[i + 1] = upper.y - y[i + 1];
        y[i + 2] = lower.x - y[i + 2], y[i + 3] = lower.y - y[i + 3];
        scaled[i] = f.x * y[i], scaled[i + 1] = f.y * y[i + 1];
        scaled[i + 2] = f.x * y[i + 2], scaled[i + 3] = f.y * y[i + 3];
      });
      split<T, 32>(scaled, x, x_low);
      hopper::wgmma_begin();
      multiply_lower<T>(y, x, x_low, stage + kOfN);
      hopper::wgmma_commit();
      hopper::wgmma_wait<0>(y);
      if constexpr (kStretch) keep_tokens(y, stage + kOfP, n);
      by_token<kFlip>(beta,
                      [&](int i, float2 f) { y[i] *= f.x, y[i + 1] *= f.y, y[i + 2] *= f.x, y[i + 3] *= f.y; });
      if constexpr (!kOutputs) hopper::barrier_arrive(block.begin_empty(n));

      hopper::barrier_wait(block.end_full(), n & 1);
      float first[32], second[32];
      channel::multiply_tokens<T, false, kFlip>(first, second, y, x, x_low, block.end_stage());
      hopper::wgmma_commit();
      if constexpr (kOutputs) {
        hopper::wgmma_begin();
        multiply_lower<T>(o, x, x_low, stage + kOfP);
        hopper::wgmma_commit();
        hopper::wgmma_wait<1>(first);
      } else {
        hopper::wgmma_wait<0>(first);
      }
      pin(second);
      add_chunk(s, first, second, block.end_stage() + kOfWhole);
      hopper::barrier_arrive(block.end_empty());
      if constexpr (kOutputs) {
        hopper::wgmma_wait<0>(o);
        put_tokens(o, p.scale, stage + kOfV);
        hopper::barrier_arrive(block.output_full(n));
      }
    }
    if constexpr (kStretch) {
      wait_stored();
    } else {
      store();
    }
  }
};

// By a warpgroup: a chunk's o, from the place of v.
template <typename T>
__device__ __forceinline__ void store_outputs(const DeltaForward &p, const Place &place,
                                              const ChannelBlock &block) {
  const int thread = threadIdx.x % kGroup, piece = thread % 8, column = place.slice * kSlice + 8 * piece;
  const int64_t stride = p.o.strides.token;
  T *to = static_cast<T *>(p.o.data) +
          offset_of(p.o, place.run.row, place.run.begin + thread / 8, place.head, p.heads) + column;
  const int32_t length = column < p.v.dim ? place.run.length : 0;
  for (int n = 0; n < place.chunks; ++n, to += kChunk * stride) {
    const int32_t left = length - n * kChunk - thread / 8;
    hopper::barrier_wait(block.output_full(n), n / kBeginStages & 1);
    uint4 x[4];
#pragma unroll
    for (int i = 0; i < 4; ++i)
      x[i] = load_shared_16(block.begin_stage(n) + kOfV + swizzled(thread / 8 + 16 * i, piece));
    hopper::barrier_arrive(block.begin_empty(n));
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (16 * i < left) store_piece(to + 16 * i * stride, x[i]);
  }
}

template <typename T, bool kStretch>
__global__ void __launch_bounds__(kThreads, 1)
    forward_channel(const int64_t first, const DeltaForward p, const Slots slots, const Stretches kept,
                    const Beside beside, const __grid_constant__ ColumnsMap map) {
  extern __shared__ __align__(1024) char shared[];
  __shared__ Place place;  // not in registers, of which consumers have none to spare
  Place mine;
  bool transition;
  if (!find_place<kStretch>(p, slots, first + blockIdx.x, mine, transition)) return wait_for_launch_before();
  mine.boxed = map.fits ? mine.run.length / kChunk : 0;
  if (threadIdx.x == 0) place = mine;
  const ChannelBlock block{shared_address(shared)};
  block.begin();
  const bool ends = is_of_ends(slots.phase);
  const bool outputs = !kStretch && p.o.data && !transition && !ends;
  const int group = __shfl_sync(~0u, int(threadIdx.x / kGroup), 0);
  if (group == 0) {
    hopper::take_registers<kChainRegisters>();
    if constexpr (kStretch) {
      ChannelChain<T, Mode::kStretch>{{p, place, place.slice, false, kept, slots, {}}, block}.walk();
    } else if (outputs) {
      ChannelChain<T, Mode::kOutputs>{{p, place, place.slice, false, kept, slots, {}}, block}.walk();
    } else {
      ChannelChain<T, Mode::kStates>{{p, place, place.slice, transition, kept, slots, {}}, block}.walk();
    }
  } else if (group == 1) {
    hopper::give_registers<kStoreRegisters>();
    if (outputs) store_outputs<T>(p, place, block);
  } else {
    hopper::give_registers<kCopyRegisters>();
    ChannelCopies{p, place, block, map, outputs, transition}.run(slots, beside);
  }
}

template <typename T>
int launch(const DeltaForward &p, const Slots &slots, const Stretches &kept, const Beside &beside, bool early,
           Stream stream) {
  const int64_t blocks = p.num_runs * slots.parts * p.heads * all_slices(p, slots.phase, kept.data != nullptr);
  const auto kernel = kept.data ? forward_channel<T, true> : forward_channel<T, false>;
  const ColumnsMap map = encode_columns(p, p.v);
  if (early) return launch_dependent(kernel, blocks, kThreads, kShared, stream, p, slots, kept, beside, map);
  return launch_blocks(kernel, blocks, kThreads, kShared, stream, p, slots, kept, beside, map);
}

}  // namespace

int launch_forward(const DeltaForward &p, const Slots &slots, const Stretches &kept, const Beside &beside,
                   bool early, Stream stream) {
  return p.dtype == DType::kBFloat16 ? launch<__nv_bfloat16>(p, slots, kept, beside, early, stream)
                                     : launch<__half>(p, slots, kept, beside, early, stream);
}

int64_t forward_shared_bytes() { return kShared; }

int load_forward() {
  for (const auto kernel : {forward_channel<__nv_bfloat16, false>, forward_channel<__nv_bfloat16, true>,
                            forward_channel<__half, false>, forward_channel<__half, true>})
    if (const int error = load_kernel(kernel, kShared)) return error;
  return cudaSuccess;
}

}  // namespace lasp::gpu::delta_hopper::channel
