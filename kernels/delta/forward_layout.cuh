// Shared memory of the forward walk. Two warpgroups of a block walk one slice of a state each, of the same part and
// head, and find its outputs; four warps copy. In k and q the blocks of 16 tokens of a chunk lie in flipped order:
// token t is row t ^ 48.
#pragma once

#include "bulk.cuh"

namespace lasp::gpu::delta_hopper::forward_walk {

constexpr int kThreads = (kWalkers + 1) * kGroup;
constexpr int kWalkerRegisters = 224, kProducerRegisters = 56;
static_assert(kWalkers * kWalkerRegisters + kProducerRegisters <= 3 * 168);
constexpr int kFlip = 48;

// For the chain: k as two panels, v as one for each walker (later its o or E), N and factors but G as a slot has
// them. For outputs: q, P.
constexpr int kChainStages = 3, kOutputStages = 3;
constexpr int kK = 0, kV = 2 * kPanel, kN = 4 * kPanel, kChainFactors = kN + kFactors - kPairN;
constexpr int kOfSlot = kFactors - kPairN + kSums;  // bytes
constexpr int kQ = 0, kP = 2 * kPanel;
constexpr int kChainBytes = round_up(kN + kOfSlot, 1024), kOutputBytes = round_up(kP + kPair, 1024);
static_assert(kOutputStages * kOutputBytes >= kWalkers * 2 * kPanel);  // Block::state
constexpr int kOutputAt = kChainStages * kChainBytes, kBarriersAt = kOutputAt + kOutputStages * kOutputBytes;
constexpr int kBarriers = 2 * kChainStages + 2 * kOutputStages;
constexpr int kBytes = kBarriersAt + 8 * kBarriers;

struct Block {
  uint32_t shared;
  __device__ uint32_t chain(int n) const { return shared + n % kChainStages * kChainBytes; }
  __device__ uint32_t output(int n) const { return shared + kOutputAt + n % kOutputStages * kOutputBytes; }
  // Of a walker that has no outputs: 128 rows of K.
  __device__ uint32_t state(int walker) const { return shared + kOutputAt + walker * 2 * kPanel; }
  __device__ uint32_t barrier(int i) const { return shared + kBarriersAt + 8 * i; }
  __device__ uint32_t chain_full(int n) const { return barrier(n % kChainStages); }
  __device__ uint32_t chain_empty(int n) const { return barrier(kChainStages + n % kChainStages); }
  __device__ uint32_t output_full(int n) const { return barrier(2 * kChainStages + n % kOutputStages); }
  __device__ uint32_t output_empty(int n) const {
    return barrier(2 * kChainStages + kOutputStages + n % kOutputStages);
  }
  // By one thread.
  __device__ void begin(int walkers, int with_outputs) const {
    for (int i = 0; i < kChainStages; ++i)
      hopper::barrier_init(chain_full(i), kGroup), hopper::barrier_init(chain_empty(i), max(1, walkers) * kGroup);
    for (int i = 0; i < kOutputStages; ++i)
      hopper::barrier_init(output_full(i), kGroup),
          hopper::barrier_init(output_empty(i), max(1, with_outputs) * kGroup);
    hopper::barrier_init_fence();
  }
};

// What the walkers of a block do. Slices of the launch: those of states, then those of M.
struct Work {
  Place place;     // its slice is the first walker's
  int32_t states;  // slices of states
  bool walks[kWalkers], outputs[kWalkers];
  __device__ __forceinline__ bool transition(int walker) const { return place.slice + walker >= states; }
  __device__ __forceinline__ int32_t slice(int walker) const {
    return place.slice + walker - (transition(walker) ? states : 0);
  }
  __device__ __forceinline__ bool any_outputs() const { return outputs[0] || outputs[1]; }
  // Of a part that forgets M is zero, without a walk.
  __device__ __forceinline__ void skip_forgotten(const DeltaForward &p, const Slots &slots) {
    delta_hopper::skip_forgotten(p, slots, place, false, place.slice == 0 && !transition(0));
    if (threadIdx.x == 0 && place.forgets && transition(0)) place.chunks = 0;
  }
};

// The producer warps.
struct Copies {
  const DeltaForward &p;
  const Work &work;
  const Block &block;
  const TensorMaps &maps;
  const bool outputs = work.any_outputs();
  const Copier copier{
      p, work.place,
      !begins_on_piece(p.k.data) || !begins_on_piece(p.v.data) || (outputs && !begins_on_piece(p.q.data))};

  // By one thread, of chunk n: what its slot has, and where `boxed` the rest.
  __device__ __forceinline__ void copy_chain(const char *slot, int n, bool boxed, int32_t head_k,
                                             int32_t head_v) const {
    const uint32_t to = block.chain(n), full = block.chain_full(n);
    const int walkers = int(work.walks[0]) + int(work.walks[1]);
    hopper::fence_async_proxy();  // walkers have written where v was
    expect_bytes(full, kOfSlot + (boxed ? (2 + walkers) * kPanel : 0));
    copy_bulk(to + kN, slot + kPairN, kOfSlot, full);
    if (!boxed) return;
    const Run &run = work.place.run;
    const int32_t token = int32_t(run.begin) + n * kChunk, row = int32_t(run.row);
    copy_boxes<16, kFlip>(to + kK, maps.k, full, token, head_k, row);
#pragma unroll
    for (int w = 0; w < kWalkers; ++w)
      if (work.walks[w])  // of M zeros, from after the tensor's last token
        hopper::tma_load_box(to + kV + w * kPanel, &maps.columns, full,
                             work.transition(w) ? int32_t(p.tokens) : token, 0, head_v, row, hopper::Keep::kNormal,
                             work.slice(w) * kSlice);
  }
  __device__ __forceinline__ void copy_outputs(const char *slot, int n, bool boxed, int32_t head) const {
    const uint32_t to = block.output(n), full = block.output_full(n);
    expect_bytes(full, kPair + (boxed ? 2 * kPanel : 0));
    copy_bulk(to + kP, slot + kPairP, kPair, full);
    const Run &run = work.place.run;
    if (boxed)
      copy_boxes<16, kFlip>(to + kQ, maps.q, full, int32_t(run.begin) + n * kChunk, head, int32_t(run.row));
  }

  __device__ __forceinline__ void run(const Slots &slots) const {
    const Place &place = work.place;
    const char *slot =
        slots.at(slots.first_of(place.index, place.part, place.run) + place.skipped, p.heads, place.head);
    const int32_t head_k = copier.head_of(p.k), head_v = copier.head_of(p.v),
                  head_q = outputs ? copier.head_of(p.q) : 0;
    const bool one = this_thread() == 0;
    for (int n = 0; n < place.chunks; ++n) {
      const int count = place.run.length - n * kChunk;
      const bool boxed = n < place.boxed;
      wait_before(block.chain_empty(n), n / kChainStages);
      const uint32_t to = block.chain(n);
      if (one) copy_chain(slot, n, boxed, head_k, head_v);
      if (!boxed) {
        copier.rows<kDim, kFlip>(to + kK, p.k, copier.begin<kDim>(p.k, head_k, n), 0, count);
#pragma unroll
        for (int w = 0; w < kWalkers; ++w)
          if (work.walks[w]) {
            const int column = work.slice(w) * kSlice;
            copier.rows<kSlice, 0>(to + kV + w * kPanel, p.v, copier.begin<kSlice>(p.v, head_v, n) + 2 * column,
                                   column, work.transition(w) ? 0 : count);
          }
      }
      arrive_copies(block.chain_full(n), copier.slow);
      if (outputs) {
        wait_before(block.output_empty(n), n / kOutputStages);
        if (one) copy_outputs(slot, n, boxed, head_q);
        if (!boxed)
          copier.rows<kDim, kFlip>(block.output(n) + kQ, p.q, copier.begin<kDim>(p.q, head_q, n), 0, count);
        arrive_copies(block.output_full(n), copier.slow);
      }
      slot += int64_t{p.heads} * slots.bytes;
    }
    copies_wait<0>();
  }
};

}  // namespace lasp::gpu::delta_hopper::forward_walk
