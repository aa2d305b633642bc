// Shared memory of the gradients' kernel and how chunks come there. All tiles have panels of 64 columns, whose rows
// are 128 swizzled bytes. Each tensor has its own buffer and barriers, so that each is copied as early as can be.
#pragma once

#include "bulk.cuh"

namespace lasp::gpu::delta_hopper::gradients {

constexpr int kWalkers = 256, kProducers = 128, kThreads = kWalkers + kProducers;
constexpr int kWalkerRegisters = 232, kProducerRegisters = 40;
static_assert(kWalkers * kWalkerRegisters + kProducers * kProducerRegisters <= kThreads * 168);

constexpr int kTile = 2 * kPanel, kState = 4 * kPanel;  // [64 tokens, 128], [128 rows of K, 128]
// k and the factors are copied a chunk ahead. N and P are pairs of tiles as a slot has them.
constexpr int kK = 0, kQ = kK + 2 * kTile, kDO = kQ + kTile, kE = kDO + kTile, kS = kE + kTile, kR = kS + kState,
              kDV = kR + kState, kScores = kDV + kTile, kN = kScores + 2 * kPanel, kP = kN + kPair,
              kFactors = kP + kPair, kSums = kFactors + 2 * kFactorBytes;
// By parity of the chunk: d_beta of each token, per channel its share of each warp; rows of d_g by walker; the last
// row's shares by warp.
constexpr int kBetaSums = 8 * 64 * 4, kRowSums = 2 * 64 * 4, kShares = 64;
constexpr int kSumBytes = kBetaSums + kRowSums + kShares;
constexpr int kBarriers = kSums + 2 * kSumBytes;
// Z lies where per channel dv does. Results leave from a panel of each half: dv from that of the scores, before
// these are there; dq from the half of R's place that the scores' low part leaves; dk from Z's place, when that is
// dead.
constexpr int kZ = kDV, kToDQ = kR + 2 * kPanel, kToDK = kZ, kToDV = kScores;
enum Buffer { kBufferK0, kBufferK1, kBufferPairs, kBufferDO, kBufferS, kBufferE, kBufferQ, kBuffers };
constexpr int kPairBarriers = kBarriers + 16 * kBuffers;  // gradients_pairs.cuh; then those of sums
constexpr int kBytes = kPairBarriers + 8 * (kWalkers / 32 + 7);

// What the copy engine reads, and dq, dk and dv. `fits`: it can write the tensor, which has 16 bits and rows that
// begin on 16 bytes.
struct GradientMaps {
  TensorMaps inputs;
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
  __device__ uint32_t offered(uint32_t warp) const { return taken() + 8 * (1 + warp); }
  // Chunk n's sums of d_beta and d_g are there; summed() and sums_taken() are in gradients_pairs.cuh. Each is two
  // barriers, for chunks in turn, with the parity of use(n): when a warp comes to wait, the next chunk may have
  // passed its own.
  __device__ uint32_t sums_full(int n) const { return offered(kWalkers / 32) + 8 * (n % 2); }
  __device__ uint32_t summed(int n) const { return sums_full(n) + 16; }
  __device__ uint32_t sums_taken(int n) const { return sums_full(n) + 32; }
  __device__ static int use(int n) { return n / 2 & 1; }
  // By all threads; and where blocks work in pairs, of both.
  template <bool kPairs = false>
  __device__ void begin() const {
    if (threadIdx.x == 0) {
      for (int i = 0; i < kBuffers; ++i)
        hopper::barrier_init(full(i), kProducers), hopper::barrier_init(empty(i), kWalkers);
      hopper::barrier_init(taken(), kWalkers / 32);
      for (uint32_t warp = 0; warp < kWalkers / 32; ++warp) hopper::barrier_init(offered(warp), 1);
      for (int n = 0; n < 2; ++n)
        hopper::barrier_init(sums_full(n), kWalkers), hopper::barrier_init(summed(n), kWalkers / 32),
            hopper::barrier_init(sums_taken(n), 2);
      hopper::barrier_init_fence();
    }
    if constexpr (kPairs) {
      hopper::cluster_sync();
    } else {
      __syncthreads();
    }
  }
  __device__ static int buffer_k(int n) { return n % 2 ? kBufferK1 : kBufferK0; }

  // Until the buffer has chunk n. `by_threads`: Place's, where a part of the buffer comes from a tensor.
  __device__ __forceinline__ void wait_full(int buffer, int n, int by_threads = 0) const {
    hopper::barrier_wait(full(buffer), (buffer <= kBufferK1 ? n / 2 : n) & 1);
    if (n < by_threads) hopper::fence_async_proxy();
  }
  __device__ __forceinline__ void free(int buffer) const { hopper::barrier_arrive(empty(buffer)); }
};

// The producers' copies. One thread has the copy engine copy what a slot and a stretch have kept, and whole chunks
// of tensors. All threads copy a run's last chunk, if it has fewer tokens, and every chunk where there are no maps.
struct Copies {
  const DeltaGradients &p;
  const Place &place;
  const Block &block;
  const TensorMaps &maps;

  __device__ __forceinline__ void wait_empty(int buffer, int n) const {
    const int use = buffer <= kBufferK1 ? n / 2 : n;
    if (use > 0) hopper::barrier_wait(block.empty(buffer), (use + 1) & 1);
  }
  // `n`: of a chunk of a tensor.
  __device__ __forceinline__ void done(int buffer, int n) const {
    if (n >= place.by_threads) return done(buffer);
    const bool slow = !begins_on_piece(p.q.data) || !begins_on_piece(p.k.data) || !begins_on_piece(p.d_o.data);
    arrive_copies(block.full(buffer), slow);
  }
  __device__ __forceinline__ void done(int buffer) const { hopper::barrier_arrive(block.full(buffer)); }
  // Bytes that lie as they are to lie.
  __device__ __forceinline__ void bytes(int buffer, uint32_t to, const char *from, int count) const {
    if (this_thread() > 0) return;
    expect_bytes(block.full(buffer), count);
    copy_bulk(block.shared + to, from, count, block.full(buffer));
  }
  // 128 columns of chunk n of the walk from `first` on.
  __device__ __forceinline__ void tensor(int buffer, uint32_t to, const Tensor &t, const CUtensorMap &map, int n,
                                         int first = 0) const {
    const int chunk = place.chunks - 1 - n;
    if (n >= place.by_threads) {
      if (this_thread() > 0) return;
      const int32_t head = int32_t(int64_t{place.head} * t.heads / p.heads);
      expect_bytes(block.full(buffer), kTile);
#pragma unroll
      for (int panel = 0; panel < 2; ++panel)
        hopper::tma_load_box(block.shared + to + panel * kPanel, &map, block.full(buffer),
                             int32_t(place.run.begin) + chunk * kChunk, 0, head, int32_t(place.run.row),
                             hopper::Keep::kNormal, first + panel * 64);
      return;
    }
    const bool slow = !begins_on_piece(p.q.data) || !begins_on_piece(p.k.data) || !begins_on_piece(p.d_o.data);
    const int row = this_thread() / 16, piece = this_thread() % 16, column = first + 8 * piece;
    const int count = column < t.dim ? place.run.length - chunk * kChunk : 0;
    const char *from =
        static_cast<const char *>(t.data) +
        2 * (offset_of(t, place.run.row, place.run.begin + chunk * kChunk + row, place.head, p.heads) + column);
    to += block.shared + piece / 8 * kPanel + swizzled(row, piece % 8);
    copy_pieces<8>(slow, [&](int i, auto copy) {
      const bool there = row + 8 * i < count;
      copy(to + i * 1024, there ? from + 16 * i * t.strides.token : t.data, there);
    });
  }

  // rows.put(n): what two of the warps do when the walkers are done with chunk n (gradients_rows.cuh).
  template <typename Sums>
  __device__ __forceinline__ void run(const Slots &slots, const Stretches &kept, Sums &rows) const {
    const int64_t item = place.group_item(p.heads, kept.groups);
    const int64_t first = slots.first_of_part(place.index, place.part, place.run) + place.skipped;
    for (int n = 0; n < place.chunks; ++n) {
      const int c = place.chunks - 1 - n;
      const char *const slot = slots.at(first + c, p.heads, place.head);
      if (n > 1) rows.put(n - 2);
      wait_empty(block.buffer_k(n), n);
      tensor(block.buffer_k(n), kK + n % 2 * kTile, p.k, maps.k, n);
      bytes(block.buffer_k(n), kFactors + n % 2 * kFactorBytes, slot + delta_hopper::kFactors, kFactorBytes);
      done(block.buffer_k(n), n);
      wait_empty(kBufferPairs, n);
      bytes(kBufferPairs, kN, slot + kPairN, kPair);
      bytes(kBufferPairs, kP, slot + kPairP, kPair);
      done(kBufferPairs);
      wait_empty(kBufferDO, n);
      tensor(kBufferDO, kDO, p.d_o, maps.columns, n, place.slice * kSlice);
      done(kBufferDO, n);
      wait_empty(kBufferS, n);
      bytes(kBufferS, kS, kept.states_of(item, c), Stretches::kStateBytes);
      done(kBufferS);
      wait_empty(kBufferE, n);
      bytes(kBufferE, kE, kept.tokens_of(item, c), Stretches::kTokenBytes);
      done(kBufferE);
      wait_empty(kBufferQ, n);
      tensor(kBufferQ, kQ, p.q, maps.q, n);
      done(kBufferQ, n);
    }
    copies_wait<0>();
    for (int n = max(place.chunks - 2, 0); n < place.chunks; ++n) rows.put(n);
  }
};

}  // namespace lasp::gpu::delta_hopper::gradients
