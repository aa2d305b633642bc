// Shared memory of the gradients' kernel and how chunks come there. All tiles have panels of 64 columns, whose rows
// are 128 swizzled bytes. Each tensor has its own buffer and barriers, so that each is copied as early as can be.
#pragma once

#include "bulk.cuh"

namespace lasp::gpu::delta_hopper::gradients {

constexpr int kWalkers = 256, kProducers = 128, kThreads = kWalkers + kProducers;
constexpr int kWalkerRegisters = 232, kProducerRegisters = 40;
static_assert(kWalkers * kWalkerRegisters + kProducers * kProducerRegisters <= kThreads * 168);

constexpr int kTile = 2 * kPanel, kState = 4 * kPanel;  // [64 tokens, 128], [128 rows of K, 128]
// k and the factors are copied a chunk ahead.
constexpr int kK = 0, kQ = kK + 2 * kTile, kDO = kQ + kTile, kE = kDO + kTile, kS = kE + kTile,
              kSquares = kS + kState, kR = kSquares + 4 * kPanel, kDV = kR + kState, kScores = kDV + kTile,
              kFactors = kScores + 2 * kPanel, kSums = kFactors + 2 * kFactorBytes;
// By parity of the chunk: d_beta of each token, per channel its share of each warp; rows of d_g by walker; the last
// row's shares by warp.
constexpr int kBetaSums = 8 * 64 * 4, kRowSums = 2 * 64 * 4, kShares = 64;
constexpr int kSumBytes = kBetaSums + kRowSums + kShares;
constexpr int kBarriers = kSums + 2 * kSumBytes;
// Z lies where per channel dv does. Results leave from a panel of each half: dv from that of the scores, before
// these are there; dq from the half of R's place that the scores' low part leaves; dk from Z's place, when that is
// dead.
constexpr int kZ = kDV, kToDQ = kR + 2 * kPanel, kToDK = kZ, kToDV = kScores;
enum Buffer { kBufferK0, kBufferK1, kBufferSquares, kBufferDO, kBufferS, kBufferE, kBufferQ, kBuffers };
constexpr int kPairBarriers = kBarriers + 16 * kBuffers;  // gradients_pairs.cuh
constexpr int kBytes = kPairBarriers + 8 * (kWalkers / 32 + 2);

// dq, dk and dv for the copy engine. `fits`: it can write the tensor, which has 16 bits and rows that begin on 16
// bytes.
struct ResultMaps {
  CUtensorMap maps[3];
  bool fits[3];
};

struct Block {
  uint32_t shared;
  __device__ uint32_t full(int buffer) const { return shared + kBarriers + 8 * buffer; }
  __device__ uint32_t empty(int buffer) const { return shared + kBarriers + 8 * (kBuffers + buffer); }
  __device__ uint32_t k(int n) const { return shared + kK + n % 2 * kTile; }
  __device__ uint32_t factors(int n) const { return shared + kFactors + n % 2 * kFactorBytes; }
  __device__ uint32_t sums(int n) const { return shared + kSums + n % 2 * kSumBytes; }
  __device__ uint32_t taken() const { return shared + kPairBarriers; }
  __device__ uint32_t summed() const { return taken() + 8; }
  __device__ uint32_t offered(uint32_t warp) const { return taken() + 8 * (2 + warp); }
  // By all threads; and where blocks work in pairs, of both.
  template <bool kPairs = false>
  __device__ void begin() const {
    if (threadIdx.x == 0) {
      for (int i = 0; i < kBuffers; ++i)
        hopper::barrier_init(full(i), kProducers), hopper::barrier_init(empty(i), kWalkers);
      hopper::barrier_init(taken(), kWalkers / 32), hopper::barrier_init(summed(), kWalkers / 32);
      for (uint32_t warp = 0; warp < kWalkers / 32; ++warp) hopper::barrier_init(offered(warp), 1);
      hopper::barrier_init_fence();
    }
    if constexpr (kPairs) {
      hopper::cluster_sync();
    } else {
      __syncthreads();
    }
  }
  __device__ static int buffer_k(int n) { return n % 2 ? kBufferK1 : kBufferK0; }

  // Until the buffer has chunk n.
  __device__ __forceinline__ void wait_full(int buffer, int n) const {
    hopper::barrier_wait(full(buffer), (buffer <= kBufferK1 ? n / 2 : n) & 1);
    hopper::fence_async_proxy();
  }
  __device__ __forceinline__ void free(int buffer) const { hopper::barrier_arrive(empty(buffer)); }
};

struct Copies {
  const DeltaGradients &p;
  const Place &place;
  const Block &block;
  const int thread = threadIdx.x % kProducers;
  const bool slow = !begins_on_piece(p.q.data) || !begins_on_piece(p.k.data) || !begins_on_piece(p.d_o.data);

  __device__ __forceinline__ void wait_empty(int buffer, int n) const {
    const int use = buffer <= kBufferK1 ? n / 2 : n;
    if (use > 0) hopper::barrier_wait(block.empty(buffer), (use + 1) & 1);
  }
  __device__ __forceinline__ void done(int buffer) const { arrive_copies(block.full(buffer), slow); }
  // 128 columns from `first` on.
  __device__ __forceinline__ void tensor(uint32_t to, const Tensor &t, int chunk, int first = 0) const {
    const int row = thread / 16, piece = thread % 16, column = first + 8 * piece;
    const int count = column < t.dim ? place.run.length - chunk * kChunk : 0;
    const char *from =
        static_cast<const char *>(t.data) +
        2 * (offset_of(t, place.run.row, place.run.begin + chunk * kChunk + row, place.head, p.heads) + column);
    to += piece / 8 * kPanel + swizzled(row, piece % 8);
    copy_pieces<8>(slow, [&](int i, auto copy) {
      const bool there = row + 8 * i < count;
      copy(to + i * 1024, there ? from + 16 * i * t.strides.token : t.data, there);
    });
  }
  // Rows of 256 bytes that follow each other.
  template <int kRows>
  __device__ __forceinline__ void rows(uint32_t to, const char *from) const {
    const int row = thread / 16, piece = thread % 16;
    from += 16 * thread, to += piece / 8 * kRows * 128 + swizzled(row, piece % 8);
#pragma unroll
    for (int i = 0; i < kRows / 8; ++i) copy_16(to + i * 1024, from + i * 2048, true);
  }

  __device__ __forceinline__ void run(const Slots &slots, const Stretches &kept) const {
    const int64_t item = place.group_item(p.heads, kept.groups);
    const int64_t first = slots.first_of_part(place.index, place.part, place.run) + place.skipped;
    for (int n = 0; n < place.chunks; ++n) {
      const int c = place.chunks - 1 - n;
      const char *const slot = slots.at(first + c, p.heads, place.head);
      wait_empty(block.buffer_k(n), n);
      tensor(block.k(n), p.k, c);
      if (thread < kFactorBytes / 16)
        copy_16(block.factors(n) + 16 * thread, slot + delta_hopper::kFactors + 16 * thread, true);
      done(block.buffer_k(n));
      wait_empty(kBufferSquares, n);
      copy_squares(block.shared + kSquares, slot + kPairN);
      copy_squares(block.shared + kSquares + 2 * kPanel, slot + kPairP);
      done(kBufferSquares);
      wait_empty(kBufferDO, n);
      tensor(block.shared + kDO, p.d_o, c, place.slice * kSlice);
      done(kBufferDO);
      wait_empty(kBufferS, n);
      rows<kDim>(block.shared + kS, kept.states_of(item, c));
      done(kBufferS);
      wait_empty(kBufferE, n);
      rows<kChunk>(block.shared + kE, kept.tokens_of(item, c));
      done(kBufferE);
      wait_empty(kBufferQ, n);
      tensor(block.shared + kQ, p.q, c);
      done(kBufferQ);
    }
    copies_wait<0>();
  }
};

}  // namespace lasp::gpu::delta_hopper::gradients
