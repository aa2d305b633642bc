// What the roles of the backward kernel share: its parameters, the map of shared memory, and the walk over chunks.
#pragma once

#include "../launch.h"
#include "boxes.cuh"
#include "layout.cuh"
#include "wgmma.cuh"

namespace lasp::gpu::hopper::fused {

inline constexpr int kDim = 128;
inline constexpr int kStretch = kFusedCheckpoint / kChunk;  // chunks
static_assert(kStretch > 1 && (kStretch & (kStretch - 1)) == 0);
inline constexpr int kKept = kStretch - 1;  // rounded states of a stretch that wait for the way back
inline constexpr int kConsumers = 8;        // warps: two warpgroups, each with half of the state
inline constexpr int kBlockThreads = 384;
// Registers of a thread: the producer warps hand theirs to the others.
inline constexpr int kProducerRegisters = 24, kConsumerRegisters = 240;

// Tiles of a chunk. Each is [64, 128] as two panels of 64 columns. On the way forward q is read for the decay's
// gradient alone.
enum Tile { kV = 0, kDo = 1, kK = 2, kQ = 3 };
inline constexpr int kStoreRows = 16;  // of a box of results: a warp's

// In place of the members of a group. kTiled: a block has a tile of a state of other dimensions, 128 rows and
// columns of it or what there is. Tensor maps read zeros beyond the tensors, and drop what is written there. States
// with V of 64 at most have tiles of as many columns. kNarrow: 128 rows of K. kPaired: K of 64 at most, two
// neighbouring heads, one to each warpgroup, and one to each panel of the tiles of tokens.
inline constexpr int kTiled = 0, kNarrow = -1, kPaired = -2;
// Columns of a block's state; heads that it works on.
constexpr int columns_of(int members) { return members < 0 ? 64 : kDim; }
constexpr int heads_of(int members) { return members == kPaired ? 2 : 1; }
// Whether tensor maps are of single panels, from any column on: else K and V are multiples of 64.
constexpr bool by_columns(int members) { return members == kTiled || members == kPaired; }

struct Params {
  CUtensorMap tiles[4];                // by Tile
  CUtensorMap checkpoints;             // [checkpoints, H, K, V]: panels of all rows that a head has in a block
  CUtensorMap d_q_to, d_k_to, d_v_to;  // of 16 tokens; of dq in single panels
  void *d_q, *d_k, *d_v;
  Strides d_q_strides, d_k_strides, d_v_strides;
  const void *g;
  Strides g_strides;
  const Run *runs;
  const float *d_state_in;
  bool from_zero;  // from_zero.h
  float *d_edge_state;
  bool edge_adds;
  // For the gradient of the decay, null where it is not wanted (see DecayTerm): [kDecayTerms, B, H, T]; and
  // [chunks, H, warps], a checkpoint counting as kStretch chunks.
  float *terms, *through;
  float *sums;  // [B, H, T]: what they add up to. It may be `terms`
  // Of grouped heads, where dk and dv have no rows of a head's own: [blocks, kKept, K, V] of 16 bits (see Walker).
  void *kept;
  int64_t batch, tokens;
  uint32_t heads, members;  // heads that share a head of k, v, dk and dv: a cluster's blocks
  uint32_t shared;          // heads that share a head of q and k, each with a dq and dk of its own
  int32_t form;             // the kernel's kMembers
  float scale, log2_scale;
  Decay decay;
  bool decay_is_float;
  // With kTiled and on: the dimensions. A launch has num_tiles tiles (the grid's y), along the diagonal that begins
  // at tile (0, diagonal), or (diagonal, 0) where the state has more rows than columns: most_tiles of them to a
  // column or row. Those of a diagonal share no results; later launches add to those of the launches before.
  // `terms` and `through` are the first tile's, the others' follow.
  int32_t dim_k, dim_v, num_tiles, most_tiles, diagonal;
  int64_t terms_size, through_size;
};

// What the gradient of a chunk's log decays is made of, with the pair of each token with itself left out: rows of q
// . dq, a half of the columns each; of k . dk from the gradient after the chunk, which is v . dv from there, as the
// group of dv finds it; of all of k . dk. And `through`, what passes over the whole chunk. See gather_terms in
// fused_backward_decay.cu.
enum DecayTerm { kQueryHalves = 0, kFromAfter = 2, kFromAll = 3, kDecayTerms = 4 };

// Of one chunk: running sums of the log2 decay, and the factors from the chunk's start to a token, from a token to
// its end.
struct alignas(16) Decays {
  float sum[kChunk], from_start[kChunk], to_end[kChunk];
  float total, reserved[3];
};

// A checkpoint comes in boxes of 64 columns: the panels of a state, or one of each of two heads. Bytes of a box.
template <int kMembers>
inline constexpr int kCheckpointRows = kMembers == kPaired ? 64 : kDim;
template <int kMembers>
inline constexpr int kCheckpointBox = kCheckpointRows<kMembers> * 128;
template <int kMembers>
inline constexpr int kCheckpointBoxes = kMembers == kPaired ? 2 : columns_of(kMembers) / 64;

struct Layout {
  static constexpr int kTile = 2 * kPanel;  // bytes
  static constexpr int kStage = 4 * kTile;
  static constexpr int kStages = 2;
  // The rounded state or its gradient, [K, V], as two panels of 64 columns: two buffers (see Block::copy). With 64
  // columns of V the second panel is free.
  static constexpr int kStateTile = kDim * kDim * 2;
  static constexpr int kStatePanel = kStateTile / 2;
  static constexpr int kStates = kStages * kStage;
  static constexpr int kOutBox = kStoreRows * 128;  // a warp's rows of 64 columns, on their way out: two of them
  static constexpr int kOut = kStates + 2 * kStateTile;
  static constexpr int kDecays = kOut + 2 * kConsumers * kOutBox;
  static constexpr int kMoreDecays = kStates + kStatePanel;  // of two heads
  static constexpr int kBarriers = kDecays + kStages * int(sizeof(Decays));
  static constexpr int kGroupBarriers = kBarriers + 8 * (2 * kStages + 2);  // two to a warp: see GroupResults
  static constexpr int kBytes = kGroupBarriers + 8 * 2 * kConsumers;
  static constexpr int kAlignment = 1024;  // of swizzled tiles
};
static_assert(Layout::kBytes + Layout::kAlignment <= 227 * 1024);

// Which part of a head's state a block has: all of it.
template <int kMembers>
struct StatePart {
  __device__ __forceinline__ explicit StatePart(const Params &) {}
  static __device__ __forceinline__ uint32_t item(const Params &) { return blockIdx.x; }  // (run, head)
  static __device__ __forceinline__ int32_t tile_k() { return 0; }
  static __device__ __forceinline__ int32_t tile_v() { return 0; }
  static __device__ __forceinline__ int64_t state_size(const Params &) { return kDim * kDim; }
  static __device__ __forceinline__ int64_t offset(const Params &) { return 0; }
  static __device__ __forceinline__ bool has(const Params &, uint32_t, int32_t, int) { return true; }
  // Where an element is, of rows that count on from one warpgroup to the other.
  static __device__ __forceinline__ int32_t at(const Params &, uint32_t, int32_t row, int32_t column) {
    return row * kDim + column;
  }
};
// All of two heads'.
template <>
struct StatePart<kPaired> : StatePart<1> {
  using StatePart<1>::StatePart;
  static __device__ __forceinline__ int64_t state_size(const Params &p) { return int64_t{p.dim_k} * p.dim_v; }
  static __device__ __forceinline__ int32_t columns(int32_t dim) { return dim; }
  static __device__ __forceinline__ bool has(const Params &p, uint32_t, int32_t warp, int i) {
    return 16 * warp < p.dim_k && 2 * i < p.dim_v;
  }
  static __device__ __forceinline__ int32_t at(const Params &p, uint32_t group, int32_t row, int32_t column) {
    return (row - int32_t(group) * (64 - p.dim_k)) * p.dim_v + column;
  }
};
// A tile of it.
template <int kMembers>
requires(kMembers == kTiled || kMembers == kNarrow) struct StatePart<kMembers> {
  int32_t k, v;
  __device__ __forceinline__ explicit StatePart(const Params &p) {
    const int32_t i = int32_t(blockIdx.y), after = i + p.diagonal;
    const int32_t around = after < p.most_tiles ? after : after - p.most_tiles;
    k = p.dim_k <= p.dim_v ? i : around, v = p.dim_k <= p.dim_v ? around : i;
  }
  static __device__ __forceinline__ uint32_t item(const Params &) { return blockIdx.x; }
  __device__ __forceinline__ int32_t tile_k() const { return k; }
  __device__ __forceinline__ int32_t tile_v() const { return v; }
  static __device__ __forceinline__ int64_t state_size(const Params &p) { return int64_t{p.dim_k} * p.dim_v; }
  __device__ __forceinline__ int64_t offset(const Params &p) const {  // of its first element
    return kDim * (int64_t{k} * p.dim_v + v);
  }
  static __device__ __forceinline__ int32_t at(const Params &p, uint32_t, int32_t row, int32_t column) {
    return row * p.dim_v + column;
  }
  // Whether the state has the rows of this warp, and the columns of element i of its accumulators.
  __device__ __forceinline__ bool has(const Params &p, uint32_t group, int32_t warp, int i) const {
    return 64 * int32_t(group) + 16 * warp < p.dim_k - kDim * k && 2 * i < p.dim_v - kDim * v;
  }
  // Whether an earlier launch has left something in dq and dk, or in dv.
  __device__ __forceinline__ bool adds(const Params &p, bool to_d_v) const {
    const int32_t mine = to_d_v ? v : k;
    const bool few = to_d_v == (p.dim_k <= p.dim_v) && mine >= p.num_tiles;  // not in the first launch
    return p.diagonal > (few ? mine - p.num_tiles + 1 : 0);
  }
};

// What one block works on, and where its shared memory is.
template <int kMembers>
struct Block : StatePart<kMembers> {
  using L = Layout;
  using Ring = RingIndex<L::kStages>;
  static constexpr int kHeads = heads_of(kMembers);
  int32_t row, begin, length, checkpoint;  // of its run: batch row, first token ..
  int32_t head, chunks, stretches;         // the first head
  uint32_t base;                           // shared address
  unsigned char *memory;                   // the same, as a pointer

  __device__ __forceinline__ Block(const Params &p, unsigned char *shared) : StatePart<kMembers>(p) {
    base = (shared_address(shared) + L::kAlignment - 1) & ~(L::kAlignment - 1);
    memory = shared + (base - shared_address(shared));
    head = int32_t(this->item(p) % (p.heads / kHeads)) * kHeads;
    const Run &run = this->run(p);
    // The same in every thread: said by a shuffle, the compiler keeps what follows from it in uniform registers.
    row = __shfl_sync(~0u, int32_t(run.row), 0), begin = __shfl_sync(~0u, int32_t(run.begin), 0);
    length = __shfl_sync(~0u, run.length, 0), checkpoint = __shfl_sync(~0u, run.checkpoint, 0);
    chunks = (length + kChunk - 1) / kChunk;
    stretches = (chunks + kStretch - 1) / kStretch;
  }
  static __device__ __forceinline__ const Run &run(const Params &p) {
    return p.runs[StatePart<kMembers>::item(p) / (p.heads / kHeads)];
  }
  __device__ __forceinline__ int32_t tokens(int32_t chunk) const { return min(kChunk, length - chunk * kChunk); }
  // Stretches are walked from the last to the first.
  __device__ __forceinline__ int32_t first_chunk(int32_t stretch) const { return stretch * kStretch; }
  __device__ __forceinline__ int32_t last_chunk(int32_t stretch) const {
    return min(chunks, (stretch + 1) * kStretch) - 1;
  }

  // What belongs to step n, a chunk on the way forward or back.
  __device__ __forceinline__ uint32_t tile(uint32_t n, Tile which) const {
    return base + Ring::of(n).stage * L::kStage + which * L::kTile;
  }
  __device__ __forceinline__ Decays &decays(uint32_t n, uint32_t group) const {
    if constexpr (kHeads == 1) return reinterpret_cast<Decays *>(memory + L::kDecays)[Ring::of(n).stage];
    return reinterpret_cast<Decays *>(memory + L::kMoreDecays)[2 * Ring::of(n).stage + group];
  }
  // The head of a warpgroup; and where its columns of v and do are in their tiles.
  __device__ __forceinline__ int32_t head_of(uint32_t group) const {
    return head + (kHeads > 1 ? int32_t(group) : 0);
  }
  static __device__ __forceinline__ uint32_t panel_of(uint32_t group) { return kHeads > 1 ? group * kPanel : 0; }
  __device__ __forceinline__ uint32_t full(uint32_t n) const { return barrier(Ring::of(n).stage); }
  __device__ __forceinline__ uint32_t empty(uint32_t n) const { return barrier(L::kStages + Ring::of(n).stage); }
  __device__ __forceinline__ void wait_full(uint32_t n) const { wait_this_round(full(n), Ring::of(n)); }
  __device__ __forceinline__ void wait_empty(uint32_t n) const { wait_round_before(empty(n), Ring::of(n)); }

  // The rounded state before a chunk, or its gradient there: of every other chunk in the same buffer. A stretch
  // begins at an even chunk, and with its checkpoint in the first one.
  __device__ __forceinline__ uint32_t copy(int32_t chunk) const {
    return base + L::kStates + chunk % 2 * L::kStateTile;
  }
  __device__ __forceinline__ uint32_t barrier(uint32_t i) const { return base + L::kBarriers + 8 * i; }
  __device__ __forceinline__ uint32_t tail() const { return barrier(2 * L::kStages); }
  // With two heads one for each warpgroup: nothing passes between them.
  __device__ __forceinline__ uint32_t state_full(uint32_t group) const {
    return kHeads > 1 && group ? base + L::kGroupBarriers : barrier(2 * L::kStages + 1);
  }
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
template <int kMembers>
class Consumer {
 protected:
  __device__ __forceinline__ Consumer(const Params &p, const Block<kMembers> &block) : p_(p), block_(block) {}
  static __device__ __forceinline__ uint32_t lane() { return threadIdx.x % 32; }

  const Params &p_;
  const Block<kMembers> &block_;
  const ThreadPlace at_;
};

}  // namespace lasp::gpu::hopper::fused
