// Shared memory of the forward walk. One warpgroup walks the chain of states; another, of outputs, follows a chunk
// behind with what the first publishes: the rounded state before the chunk and U. Four warps copy. The blocks of 16
// tokens of a chunk lie in flipped order: token t is row t ^ 48.
#pragma once

#include "walk.cuh"

namespace lasp::gpu::delta_hopper::forward_walk {

constexpr int kThreads = 384, kGroup = 128;
constexpr int kChainRegisters = 240, kOutputRegisters = 152, kProducerRegisters = 72;
static_assert(kChainRegisters + kOutputRegisters + kProducerRegisters <= 3 * 168);
constexpr int kFlip = 48;

// For the chain: k as two panels, v, N high and low, factors. For outputs: q, P high and low as squares with zeros
// over the diagonal, factors. Published: the state [64 columns of V, 128 rows of K], U high and low [64 columns of
// V, 64].
constexpr int kChainStages = 3, kOutputStages = 2;
constexpr int kK = 0, kV = 2 * kPanel, kN = 3 * kPanel, kChainFactors = 5 * kPanel;
constexpr int kQ = 0, kP = 2 * kPanel, kOutputFactors = 4 * kPanel;
constexpr int kChainBytes = 5 * kPanel + 1024, kOutputBytes = 4 * kPanel + 1024;
constexpr int kOutputAt = kChainStages * kChainBytes, kStateAt = kOutputAt + kOutputStages * kOutputBytes,
              kUAt = kStateAt + 2 * kPanel, kBarriersAt = kUAt + 2 * kPanel;
constexpr int kBarriers = 2 * kChainStages + 2 * kOutputStages + 4;
constexpr int kBytes = kBarriersAt + 8 * kBarriers;

struct Block {
  static constexpr int kOutputStages = forward_walk::kOutputStages;
  uint32_t shared;
  __device__ uint32_t chain(int n) const { return shared + n % kChainStages * kChainBytes; }
  __device__ uint32_t output(int n) const { return shared + kOutputAt + n % kOutputStages * kOutputBytes; }
  __device__ uint32_t state() const { return shared + kStateAt; }
  __device__ uint32_t u() const { return shared + kUAt; }
  __device__ uint32_t barrier(int i) const { return shared + kBarriersAt + 8 * i; }
  __device__ uint32_t chain_full(int n) const { return barrier(n % kChainStages); }
  __device__ uint32_t chain_empty(int n) const { return barrier(kChainStages + n % kChainStages); }
  __device__ uint32_t output_full(int n) const { return barrier(2 * kChainStages + n % kOutputStages); }
  __device__ uint32_t output_empty(int n) const {
    return barrier(2 * kChainStages + kOutputStages + n % kOutputStages);
  }
  __device__ uint32_t state_full() const { return barrier(kBarriers - 4); }
  __device__ uint32_t state_empty() const { return barrier(kBarriers - 3); }
  __device__ uint32_t u_full() const { return barrier(kBarriers - 2); }
  __device__ uint32_t u_empty() const { return barrier(kBarriers - 1); }

  // By all threads: barriers, and the zeros of P.
  __device__ void begin() const {
    if (threadIdx.x == 0) {
      for (int i = 0; i < kBarriers; ++i) hopper::barrier_init(barrier(i), kGroup);
      hopper::barrier_init_fence();
    }
    for (int i = threadIdx.x; i < kOutputStages * 2 * kPanel / 16; i += kThreads)
      store_shared_16(output(i / (2 * kPanel / 16)) + kP + i % (2 * kPanel / 16) * 16, uint4{0, 0, 0, 0});
    hopper::fence_async_proxy();
    __syncthreads();
  }
};

// What was copied, once its barrier's phase is complete, for the tensor cores.
__device__ __forceinline__ void wait_copies(uint32_t barrier, int use) {
  hopper::barrier_wait(barrier, use & 1);
  hopper::fence_async_proxy();
}
__device__ __forceinline__ void wait_before(uint32_t empty, int use) {
  if (use > 0) hopper::barrier_wait(empty, (use + 1) & 1);
}

// The producer warps.
struct Copies {
  const DeltaForward &p;
  const Place &place;
  const Block &block;
  const bool outputs, no_v;
  const int thread = threadIdx.x % kGroup;
  const bool slow = !begins_on_piece(p.k.data) || (!no_v && !begins_on_piece(p.v.data)) ||
                    (outputs && !begins_on_piece(p.q.data));

  // kColumns of a tensor's rows, 16 bytes a piece.
  template <int kColumns>
  __device__ __forceinline__ void tensor(uint32_t to, const Tensor &t, int column, int chunk, bool any) const {
    constexpr int kPieces = kColumns / 8, kRows = kGroup / kPieces;
    const int row = thread / kPieces, piece = thread % kPieces, count = place.run.length - chunk * kChunk;
    const char *const from =
        static_cast<const char *>(t.data) +
        2 * (offset_of(t, place.run.row, place.run.begin + chunk * kChunk + row, place.head, p.heads) + column +
             8 * piece);
    to += piece / 8 * kPanel + swizzled(row, piece % 8);
    copy_pieces<kChunk / kRows>(slow, [&](int i, auto copy) {
      const bool there = any && row + kRows * i < count && column + 8 * piece < t.dim;
      copy(to + ((kRows * i) ^ kFlip) * 128, there ? from + 2 * kRows * i * t.strides.token : p.k.data, there);
    });
  }
  // Two tiles of a slot from its byte `at` on, and factors.
  __device__ __forceinline__ void slot(uint32_t squares, uint32_t factors, const char *from, int at) const {
#pragma unroll
    for (int i = 0; i < 2 * kTile / 16 / kGroup; ++i) {
      const int x = thread + i * kGroup;
      copy_16(squares + square_piece<kFlip>(x), from + at + 16 * x, true);
    }
    if (thread < 64) copy_16(factors + (16 * thread ^ 4 * kFlip), from + kFactors + 16 * thread, true);
  }
  __device__ __forceinline__ void for_chain(const char *from, int n) const {
    wait_before(block.chain_empty(n), n / kChainStages);
    tensor<kDim>(block.chain(n) + kK, p.k, 0, n, true);
    tensor<kSlice>(block.chain(n) + kV, p.v, place.slice * kSlice, n, !no_v);
    slot(block.chain(n) + kN, block.chain(n) + kChainFactors, from, kNHigh);
    arrive_copies(block.chain_full(n), slow);
  }
  __device__ __forceinline__ void for_outputs(const char *from, int n) const {
    wait_before(block.output_empty(n), n / kOutputStages);
    tensor<kDim>(block.output(n) + kQ, p.q, 0, n, true);
    slot(block.output(n) + kP, block.output(n) + kOutputFactors, from, kPHigh);
    arrive_copies(block.output_full(n), slow);
  }
  __device__ __forceinline__ void run(const Slots &slots) const {
    const char *slot = slots.at(slots.first_of(place.index, place.part), p.heads, place.head);
    const int64_t step = int64_t{p.heads} * slots.bytes;
    for_chain(slot, 0);
    for (int n = 0; n < place.chunks; ++n, slot += step) {
      if (n + 1 < place.chunks) for_chain(slot + step, n + 1);
      if (outputs) for_outputs(slot, n);
    }
    copies_wait<0>();
  }
};

}  // namespace lasp::gpu::delta_hopper::forward_walk
