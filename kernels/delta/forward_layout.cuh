// Shared memory of the forward walk. Two warpgroups of a block walk one slice of a state each, of the same part and
// head, and find its outputs; four warps copy. The blocks of 16 tokens of a chunk lie in flipped order: token t is
// row t ^ 48.
#pragma once

#include "walk.cuh"

namespace lasp::gpu::delta_hopper::forward_walk {

constexpr int kThreads = (kWalkers + 1) * kGroup;
constexpr int kWalkerRegisters = 224, kProducerRegisters = 56;
static_assert(kWalkers * kWalkerRegisters + kProducerRegisters <= 3 * 168);
constexpr int kFlip = 48;

// For the chain: k as two panels, v as one for each walker (later its o or E), N high and low, factors. For
// outputs: q, P high and low. Upper blocks of N and P are not written.
constexpr int kChainStages = 3, kOutputStages = 2;
constexpr int kK = 0, kV = 2 * kPanel, kN = 4 * kPanel, kChainFactors = 6 * kPanel;
constexpr int kQ = 0, kP = 2 * kPanel;
constexpr int kChainBytes = 6 * kPanel + 1024, kOutputBytes = 4 * kPanel;
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
};

// The producer warps.
struct Copies {
  const DeltaForward &p;
  const Work &work;
  const Block &block;
  const bool outputs = work.any_outputs();
  const Copier<kFlip> copier{
      p, work.place,
      !begins_on_piece(p.k.data) || !begins_on_piece(p.v.data) || (outputs && !begins_on_piece(p.q.data))};

  __device__ __forceinline__ void run(const Slots &slots) const {
    const Place &place = work.place;
    const char *slot = slots.at(slots.first_of(place.index, place.part, place.run), p.heads, place.head);
    const char *k = copier.begin<kDim>(p.k, copier.head_of(p.k), 0), *q = nullptr;
    const char *v = copier.begin<kSlice>(p.v, copier.head_of(p.v), 0);
    if (outputs) q = copier.begin<kDim>(p.q, copier.head_of(p.q), 0);
    for (int n = 0; n < place.chunks; ++n) {
      const int count = place.run.length - n * kChunk;
      wait_before(block.chain_empty(n), n / kChainStages);
      const uint32_t to = block.chain(n);
      copier.rows<kDim>(to + kK, p.k, k, 0, count);
#pragma unroll
      for (int w = 0; w < kWalkers; ++w)
        if (work.walks[w]) {
          const int column = work.slice(w) * kSlice;
          copier.rows<kSlice>(to + kV + w * kPanel, p.v, v + 2 * column, column, work.transition(w) ? 0 : count);
        }
      copier.squares<2>(to + kN, slot + kNHigh);
      copier.factors(to + kChainFactors, slot);
      arrive_copies(block.chain_full(n), copier.slow);
      if (outputs) {
        const uint32_t out = block.output(n);
        wait_before(block.output_empty(n), n / kOutputStages);
        copier.rows<kDim>(out + kQ, p.q, q, 0, count);
        copier.squares<2>(out + kP, slot + kPHigh);
        arrive_copies(block.output_full(n), copier.slow);
      }
      slot += int64_t{p.heads} * slots.bytes;
      k += 2 * kChunk * p.k.strides.token, q += 2 * kChunk * p.q.strides.token;
      v += 2 * kChunk * p.v.strides.token;
    }
    copies_wait<0>();
  }
};

}  // namespace lasp::gpu::delta_hopper::forward_walk
