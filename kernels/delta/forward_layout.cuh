// Shared memory of the forward walk. Two warpgroups of a block walk one slice of a state each, of the same part and
// head, and find its outputs (a walk for ends may have one of them alone); a third copies, and finds scores P a
// chunk ahead, which so never pass through memory. In k and q the blocks of 16 tokens of a chunk lie in flipped
// order: token t is row t ^ 48.
#pragma once

#include "bulk.cuh"

namespace lasp::gpu::delta_hopper::forward_walk {

constexpr int kThreads = (kWalkers + 1) * kGroup, kWarps = kGroup / 32;
constexpr int kWalkerRegisters = 224, kProducerRegisters = 56;
static_assert(kWalkers * kWalkerRegisters + kProducerRegisters <= 3 * 168);
constexpr int kFlip = 48;

// For the chain: k as two panels, v as one for each walker (later its o or E), N and factors as a slot has them.
// For outputs: q, P.
constexpr int kChainStages = 3, kOutputStages = 3;
constexpr int kK = 0, kV = 2 * kPanel, kN = 4 * kPanel, kChainFactors = kN + kFactors;
constexpr int kQ = 0, kP = 2 * kPanel;
constexpr int kChainBytes = round_up(kN + kSlotWithoutP, 1024), kOutputBytes = round_up(kP + kPair, 1024);
static_assert(kOutputStages * kOutputBytes >= kWalkers * 5 * kPanel);  // Block::state, Block::tokens
constexpr int kOutputAt = kChainStages * kChainBytes, kBarriersAt = kOutputAt + kOutputStages * kOutputBytes;
constexpr int kBarriers = 2 * kChainStages + 3 * kOutputStages;
constexpr int kBytes = kBarriersAt + 8 * kBarriers;

// Whether a chunk's decays are narrow: all of it multiplies a state by this at least, so that decays may leave its
// scores and come back with U and o. `factors`: of its slot. A NaN is not.
template <typename T>
__device__ __forceinline__ bool is_narrow(uint32_t factors) {
  constexpr float kLeast = kIsBFloat16<T> ? 0x1p-64f : 0x1p-4f;  // of float16, whose numbers end at 2^-24
  return load_float(factors + kWhole) >= kLeast;
}

struct Block {
  uint32_t shared;
  __device__ uint32_t chain(int n) const { return shared + n % kChainStages * kChainBytes; }
  __device__ uint32_t output(int n) const { return shared + kOutputAt + n % kOutputStages * kOutputBytes; }
  // Of a walker of a stretch, which has no outputs: images of 128 rows of K, for chunks in turn, and of 64 tokens.
  __device__ uint32_t state(int walker, int n) const {
    return shared + kOutputAt + (walker + n % 2 * kWalkers) * 2 * kPanel;
  }
  __device__ uint32_t tokens(int walker) const { return shared + kOutputAt + (4 * kWalkers + walker) * kPanel; }
  __device__ uint32_t barrier(int i) const { return shared + kBarriersAt + 8 * i; }
  __device__ uint32_t chain_full(int n) const { return barrier(n % kChainStages); }
  __device__ uint32_t chain_empty(int n) const { return barrier(kChainStages + n % kChainStages); }
  __device__ uint32_t output_full(int n) const { return barrier(2 * kChainStages + n % kOutputStages); }
  __device__ uint32_t output_empty(int n) const {
    return barrier(2 * kChainStages + kOutputStages + n % kOutputStages);
  }
  __device__ uint32_t scores_full(int n) const {
    return barrier(2 * kChainStages + 2 * kOutputStages + n % kOutputStages);
  }
  // By one thread.
  __device__ void begin(int walkers, int with_outputs) const {
    for (int i = 0; i < kChainStages; ++i)
      hopper::barrier_init(chain_full(i), kWarps), hopper::barrier_init(chain_empty(i), max(1, walkers) * kGroup);
    for (int i = 0; i < kOutputStages; ++i)
      hopper::barrier_init(output_full(i), kWarps), hopper::barrier_init(scores_full(i), kGroup),
          hopper::barrier_init(output_empty(i), max(1, with_outputs) * kGroup);
    hopper::barrier_init_fence();
  }
};

// What the walkers of a block do. Slices of the launch: those of states, then those of M.
struct Work {
  Place place;                     // its slice is the first walker's
  int32_t states;                  // slices of states
  int32_t whole_chunks[kWalkers];  // Walker::whole_chunks
  int32_t head_k, head_v, head_q;  // that serve the block's
  bool walks[kWalkers], outputs[kWalkers];
  __device__ __forceinline__ bool transition(int walker) const { return place.slice + walker >= states; }
  __device__ __forceinline__ int32_t slice(int walker) const {
    return place.slice + walker - (transition(walker) ? states : 0);
  }
  __device__ __forceinline__ bool any_outputs() const { return outputs[0] || outputs[1]; }
  // Of a part that forgets M is zero, without a walk.
  __device__ __forceinline__ void skip_forgotten(const DeltaForward &p, const Slots &slots) {
    delta_hopper::skip_forgotten(p, slots, place, false, place.slice == 0 && !transition(0));
    __syncwarp();  // the compiler lets all lanes read what one has written
    if (threadIdx.x == 0 && place.forgets && transition(0)) place.chunks = 0;
  }
};

}  // namespace lasp::gpu::delta_hopper::forward_walk
