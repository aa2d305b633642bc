// What the roles of the backward kernel share: its parameters, the map of shared memory, and the walk over chunks.
#pragma once

#include "../launch.h"
#include "layout.cuh"
#include "wgmma.cuh"

namespace lasp::gpu::hopper::fused {

inline constexpr int kDim = 128;
inline constexpr int kStretch = kFusedCheckpoint / kChunk;  // chunks
static_assert((kStretch & (kStretch - 1)) == 0);
inline constexpr int kKept = kStretch - 2;  // rounded states of a stretch that wait for the way back
inline constexpr int kConsumers = 8;        // warps: two warpgroups, each with half of the state
inline constexpr int kBlockThreads = 384;
// Registers of a thread: the producer warps hand theirs to the others.
inline constexpr int kProducerRegisters = 24, kConsumerRegisters = 240;

// Tiles of a chunk. Each is [64, 128] as two panels of 64 columns. On the way forward q is read for the decay's
// gradient alone.
enum Tile { kV = 0, kDo = 1, kK = 2, kQ = 3 };
inline constexpr int kStoreRows = 16;  // of a box of results: a warp's

struct Params {
  CUtensorMap tiles[4];                // by Tile
  CUtensorMap d_q_to, d_k_to, d_v_to;  // of 16 tokens; of dq in single panels
  void *d_q, *d_k, *d_v;
  Strides d_q_strides, d_k_strides, d_v_strides;
  const void *g;
  Strides g_strides;
  const Run *runs;
  const void *checkpoints;
  const float *d_state_in;
  float *d_edge_state;
  // For the gradient of the decay, null where it is not wanted (see DecayTerm): [kDecayTerms, B, H, T]; and
  // [chunks, H, warps], a checkpoint counting as kStretch chunks.
  float *terms, *through;
  // Of grouped heads, where dk and dv have no rows of a head's own: [blocks, kKept, K, V] of 16 bits (see Walker).
  void *kept;
  int64_t batch, tokens;
  uint32_t heads, members;  // heads that share a head of k, v, dk and dv: a cluster's blocks
  float scale, log2_scale;
  Decay decay;
  bool decay_is_float;
};

// What the gradient of a chunk's log decays is made of, with the pair of each token with itself left out: rows of q
// . dq, a half of the columns each; of k . dk from the gradient after the chunk; of all of k . dk, added up alike,
// so that where nothing else adds to it the two are equal. And `through`, what passes over the whole chunk. See
// gather_decay_gradient.
enum DecayTerm { kQueryHalves = 0, kFromAfter = 2, kFromAll = 3, kDecayTerms = 4 };

// Of one chunk: running sums of the log2 decay, and the factors from the chunk's start to a token, from a token to
// its end.
struct alignas(16) Decays {
  float sum[kChunk], from_start[kChunk], to_end[kChunk];
  float total, reserved[3];
};

struct Layout {
  static constexpr int kTile = 2 * kPanel;  // bytes
  static constexpr int kStage = 4 * kTile;
  static constexpr int kStages = 2;
  // The rounded state or its gradient, [K, V], as two panels of 64 columns: two buffers take turns.
  static constexpr int kStateTile = kDim * kDim * 2;
  static constexpr int kStatePanel = kStateTile / 2;
  static constexpr int kStates = kStages * kStage;
  static constexpr int kOutBox = kStoreRows * 128;  // a warp's rows of 64 columns, on their way out: two of them
  static constexpr int kOut = kStates + 2 * kStateTile;
  static constexpr int kDecays = kOut + 2 * kConsumers * kOutBox;
  static constexpr int kBarriers = kDecays + kStages * int(sizeof(Decays));
  static constexpr int kGroupBarriers = kBarriers + 8 * (2 * kStages + 2);  // two to a warp: see GroupResults
  static constexpr int kBytes = kGroupBarriers + 8 * 2 * kConsumers;
  static constexpr int kAlignment = 1024;  // of swizzled tiles
};
static_assert(Layout::kBytes + Layout::kAlignment <= 227 * 1024);

// What one block works on, and where its shared memory is.
struct Block {
  using L = Layout;
  using Ring = RingIndex<L::kStages>;
  int32_t row, begin, length, checkpoint;  // of its run: batch row, first token ..
  int32_t head, chunks, stretches;
  uint32_t base;          // shared address
  unsigned char *memory;  // the same, as a pointer

  __device__ __forceinline__ Block(const Params &p, unsigned char *shared) {
    base = (shared_address(shared) + L::kAlignment - 1) & ~(L::kAlignment - 1);
    memory = shared + (base - shared_address(shared));
    head = int32_t(blockIdx.x % p.heads);
    const Run &run = this->run(p);
    // The same in every thread: said by a shuffle, the compiler keeps what follows from it in uniform registers.
    row = __shfl_sync(~0u, int32_t(run.row), 0), begin = __shfl_sync(~0u, int32_t(run.begin), 0);
    length = __shfl_sync(~0u, run.length, 0), checkpoint = __shfl_sync(~0u, run.checkpoint, 0);
    chunks = (length + kChunk - 1) / kChunk;
    stretches = (chunks + kStretch - 1) / kStretch;
  }
  static __device__ __forceinline__ const Run &run(const Params &p) { return p.runs[blockIdx.x / p.heads]; }
  __device__ __forceinline__ int32_t tokens(int32_t chunk) const { return min(kChunk, length - chunk * kChunk); }
  // Stretches are walked from the last to the first.
  __device__ __forceinline__ int32_t first_chunk(int32_t stretch) const { return stretch * kStretch; }
  __device__ __forceinline__ int32_t last_chunk(int32_t stretch) const {
    return min(chunks, (stretch + 1) * kStretch) - 1;
  }
  // The checkpoint of a stretch, of elements of 16 bits.
  __device__ __forceinline__ const uint16_t *checkpoint_of(const Params &p, int32_t stretch) const {
    return static_cast<const uint16_t *>(p.checkpoints) +
           ((int64_t{checkpoint} + stretch) * p.heads + head) * kDim * kDim;
  }

  // What belongs to step n, a chunk on the way forward or back.
  __device__ __forceinline__ uint32_t tile(uint32_t n, Tile which) const {
    return base + Ring::of(n).stage * L::kStage + which * L::kTile;
  }
  __device__ __forceinline__ Decays &decays(uint32_t n) const {
    return reinterpret_cast<Decays *>(memory + L::kDecays)[Ring::of(n).stage];
  }
  __device__ __forceinline__ uint32_t full(uint32_t n) const { return barrier(Ring::of(n).stage); }
  __device__ __forceinline__ uint32_t empty(uint32_t n) const { return barrier(L::kStages + Ring::of(n).stage); }
  __device__ __forceinline__ void wait_full(uint32_t n) const { wait_this_round(full(n), Ring::of(n)); }
  __device__ __forceinline__ void wait_empty(uint32_t n) const { wait_round_before(empty(n), Ring::of(n)); }

  __device__ __forceinline__ uint32_t state(uint32_t i) const { return base + L::kStates + i * L::kStateTile; }
  __device__ __forceinline__ uint32_t barrier(uint32_t i) const { return base + L::kBarriers + 8 * i; }
  __device__ __forceinline__ uint32_t tail() const { return barrier(2 * L::kStages); }
  __device__ __forceinline__ uint32_t state_full() const { return barrier(2 * L::kStages + 1); }
};

// What one consumer thread owns. Element 4j + 2r + e of an accumulator is row `row + 8r`, column `8j + column + e`.
struct ThreadPlace {
  int32_t warp;  // of the warpgroup
  int32_t row, column;
  uint32_t group;  // of the two warpgroups
  // Offsets in swizzled panels of the 16-byte pieces that this lane names for four 8x8 matrices: of 16 rows and 16
  // columns from a panel's beginning; and, for transposed ones, of 16 rows and this warp's 16 columns.
  uint32_t rows, columns;
  __device__ __forceinline__ ThreadPlace()
      : warp(__shfl_sync(~0u, int32_t(threadIdx.x % 128 / 32), 0)),
        row(warp * 16 + lane() / 4),
        column(lane() % 4 * 2),
        group(__shfl_sync(~0u, uint32_t(threadIdx.x / 128), 0)),
        rows(lane() % 16 * 128 + ((lane() / 16 ^ lane() % 8) << 4)),
        columns((lane() / 16 * 8 + lane() % 8) * 128 + ((2 * warp + lane() / 8 % 2 ^ lane() % 8) << 4)) {}
  static __device__ __forceinline__ uint32_t lane() { return threadIdx.x % 32; }
};

// A consumer thread: the parameters, its block and its place. Walker (fused_backward_walk.cuh) is one that stores
// results (fused_backward_store.cuh) and leaves terms of the decay's gradient (fused_backward_decay_terms.cuh).
// They are bases of each other, not members with references to each other: that costs registers, and there are
// none.
class Consumer {
 protected:
  __device__ __forceinline__ Consumer(const Params &p, const Block &block) : p_(p), block_(block) {}
  static __device__ __forceinline__ uint32_t lane() { return threadIdx.x % 32; }

  const Params &p_;
  const Block &block_;
  const ThreadPlace at_;
};

}  // namespace lasp::gpu::hopper::fused
