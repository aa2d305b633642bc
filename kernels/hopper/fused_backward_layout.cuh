// What the roles of the backward kernel share: its parameters, the map of shared memory, and the walk over chunks.
#pragma once

#include "../launch.h"
#include "layout.cuh"
#include "wgmma.cuh"

namespace lasp::gpu::hopper::fused {

inline constexpr int kDim = 128;
inline constexpr int kStretch = kFusedCheckpoint / kChunk;  // chunks
static_assert((kStretch & (kStretch - 1)) == 0);
inline constexpr int kConsumers = 8;  // warps: two warpgroups, each with half of the state
inline constexpr int kBlockThreads = 384;
// Registers of a thread: the feeding warps hand theirs to the others.
inline constexpr int kFeeds = 24, kWalkers = 240;

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
  // For the gradient of the decay, null where it is not wanted (see DecayPart): [kDecayParts, B, H, T]; [chunks, H,
  // warps], a checkpoint counting as kStretch chunks; and by block the rounded states before a stretch's chunks.
  float *parts, *through;
  uint4 *states;
  uint32_t first_item;  // the first block's (run, head)
  int64_t batch, tokens;
  uint32_t heads;
  float scale, log2_scale;
  Decay decay;
  bool decay_is_float;
};

// What the gradient of a chunk's log decays is made of, with the pair of each token with itself left out: rows of q
// . dq, a half of the columns each; of k . dk from the gradient after the chunk; of all of k . dk, added up alike,
// so that where nothing else adds to it the two are equal. And `through`, what passes over the whole chunk. See
// gather_decay_gradient.
enum DecayPart { kQueryHalves = 0, kFromAfter = 2, kFromAll = 3, kDecayParts = 4 };
inline constexpr int kKeptStates = kStretch;                // the first of them is not read
inline constexpr int kStateVectors = kDim * kDim * 2 / 16;  // of 16 bytes, in a rounded state

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
  static constexpr int kBytes = kBarriers + 8 * (2 * kStages + 2);
  static constexpr int kAlignment = 1024;  // of swizzled tiles
};
static_assert(Layout::kBytes + Layout::kAlignment <= 227 * 1024);

// What one block works on, and where its shared memory is.
struct Block {
  using L = Layout;
  int32_t row, begin, length, checkpoint;  // of its run: batch row, first token ..
  int32_t head, chunks, stretches;
  uint32_t base;          // shared address
  unsigned char *memory;  // the same, as a pointer

  __device__ __forceinline__ Block(const Params &p, unsigned char *shared) {
    base = (smem_address(shared) + L::kAlignment - 1) & ~(L::kAlignment - 1);
    memory = shared + (base - smem_address(shared));
    head = int32_t((p.first_item + blockIdx.x) % p.heads);
    const Run &run = this->run(p);
    // The same in every thread: said by a shuffle, the compiler keeps what follows from it in uniform registers.
    row = __shfl_sync(~0u, int32_t(run.row), 0), begin = __shfl_sync(~0u, int32_t(run.begin), 0);
    length = __shfl_sync(~0u, run.length, 0), checkpoint = __shfl_sync(~0u, run.checkpoint, 0);
    chunks = (length + kChunk - 1) / kChunk;
    stretches = (chunks + kStretch - 1) / kStretch;
  }
  static __device__ __forceinline__ const Run &run(const Params &p) {
    return p.runs[(p.first_item + blockIdx.x) / p.heads];
  }
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
    return base + (n & 1) * L::kStage + which * L::kTile;
  }
  __device__ __forceinline__ Decays &decays(uint32_t n) const {
    return reinterpret_cast<Decays *>(memory + L::kDecays)[n & 1];
  }
  __device__ __forceinline__ uint32_t full(uint32_t n) const { return barrier(n & 1); }
  __device__ __forceinline__ uint32_t empty(uint32_t n) const { return barrier(2 + (n & 1)); }
  __device__ __forceinline__ void wait_full(uint32_t n) const { barrier_wait(full(n), n / 2 & 1); }
  __device__ __forceinline__ void wait_empty(uint32_t n) const { barrier_wait(empty(n), (n / 2 & 1) ^ 1); }

  __device__ __forceinline__ uint32_t state(uint32_t i) const { return base + L::kStates + i * L::kStateTile; }
  __device__ __forceinline__ uint32_t barrier(uint32_t i) const { return base + L::kBarriers + 8 * i; }
  __device__ __forceinline__ uint32_t tail() const { return barrier(2 * L::kStages); }
  __device__ __forceinline__ uint32_t state_full() const { return barrier(2 * L::kStages + 1); }
};

// Element 4j + 2r + e of an accumulator is row `row + 8r`, column `8j + column + e`.
struct Place {
  int32_t warp, row, column;
  __device__ __forceinline__ Place()
      : warp(__shfl_sync(~0u, int32_t(threadIdx.x % 128 / 32), 0)),
        row(warp * 16 + threadIdx.x % 32 / 4),
        column(threadIdx.x % 4 * 2) {}
};

// `x` or `y`, both of them in registers: of two elements of an array the compiler would choose an address.
__device__ __forceinline__ float select(bool which, float x, float y) {
  float z;
  asm("{\n.reg .pred p;\nsetp.ne.b32 p, %3, 0;\nselp.f32 %0, %1, %2, p;\n}"
      : "=f"(z)
      : "f"(x), "f"(y), "r"(int(which)));
  return z;
}

// Rounds scores into the left operand of a product with 64 rows of tokens: those of a pair of tokens times `scale`
// and exp2 of the decay between them, 0 where the later token is not later. Scores are [earlier, later] where
// kLaterColumns, else [later, earlier]. Without branches: the tensor cores wait for it. `apart`: the weighted
// scores of each token with itself are left out and put into `own`, of this thread's rows; a pair's rounded score
// is the same either way.
template <typename T, bool kLaterColumns>
__device__ __forceinline__ void round_scores(const Place &at, const Decays &decays, float log2_scale,
                                             const float (&scores)[32], uint32_t (&rounded)[16], bool apart,
                                             float (&own)[2]) {
  const int32_t over = at.row - 16 * at.warp - at.column;  // row less column in a square of the diagonal
  const float by_row = kLaterColumns ? 0 : log2_scale;
  const float row[2] = {decays.sum[at.row] + by_row, decays.sum[at.row + 8] + by_row};
  float found[2] = {0, 0};
#pragma unroll
  for (int block = 0; block < 4; ++block) {
    // Of the four 8 x 8 squares in a block on the diagonal one is all masked, one is not, and two share it.
    const bool before = kLaterColumns ? block > at.warp : block < at.warp, diagonal = block == at.warp;
    float x[8];
#pragma unroll
    for (int i = 0; i < 8; i += 4) {
      const float2 column = *reinterpret_cast<const float2 *>(decays.sum + 16 * block + 2 * i + at.column);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int right = i / 4, low = j / 2;
        const float c = j % 2 ? column.y : column.x;
        const int32_t ahead = kLaterColumns ? j % 2 - over : over - j % 2;  // later less earlier token
        const bool kept = right == low ? ahead >= int(apart) : (right != 0) == kLaterColumns;
        const float difference = kLaterColumns ? c + log2_scale - row[low] : row[low] - c;
        x[i + j] = scores[8 * block + i + j] * exp2_fast(before || (diagonal && kept) ? difference : -INFINITY);
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) rounded[4 * block + i] = Pair<T>::pack(x[2 * i], x[2 * i + 1]);
    if (apart)
#pragma unroll
      for (int r = 0; r < 2; ++r)
        found[r] =
            select(diagonal, select(over > 0, scores[8 * block + 6 * r + 1], scores[8 * block + 6 * r]), found[r]);
  }
  // Of each row one lane of its quad holds the diagonal.
  if (apart)
#pragma unroll
    for (int r = 0; r < 2; ++r)
      own[r] = __shfl_sync(~0u, found[r], (threadIdx.x & 28) + threadIdx.x % 32 / 8) *
               exp2_fast(decays.sum[at.row + 8 * r] + log2_scale - decays.sum[at.row + 8 * r]);
}

}  // namespace lasp::gpu::hopper::fused
