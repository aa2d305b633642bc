// What the roles of the backward walks with per-channel decay share: the map of shared memory, and the walk over
// chunks. The walks are those of ../mma/channel_layout.cuh, whose names of the tensors (a, b, c, y, x) stand here.
//
// A walker owns 64 channels, rows of the state. A block has two walkers: of a tile of 128 channels of one head, or,
// where K is 64, of two heads.
#pragma once

#include "../mma/channel_layout.cuh"
#include "layout.cuh"

namespace lasp::gpu::hopper::channel_backward {

using mma::channel::Walk;

inline constexpr int kTokens = 32, kHalf = kTokens / 2;  // of a chunk
inline constexpr int kBox = kTokens * 128;               // bytes of a panel: 32 rows of 128 bytes, swizzled
inline constexpr int kWalkers = 2;                       // warpgroups
inline constexpr int kRows = 64;                         // channels of a walker
inline constexpr int kThreads = (kWalkers + 1) * 128;

struct Params {
  Walk walk;
  CUtensorMap a, b, c, g, partner, x, x_low;
  int32_t blocks;  // of a run
};

// How a chunk or a half chunk is walked through (channel_backward_prepare.cuh): as it is; after the state's scale
// has changed; in halves, each with a Way of its own; or, of a half chunk, pair by pair.
enum class Way : int { kWhole, kRescaled, kHalves, kPairs };

template <int kHeads, int kColumns, bool kReversed>
struct Layout {
  static constexpr int kSidePanels = kColumns / 64;          // of a head's a or b
  static constexpr int kSide = kHeads * kSidePanels * kBox;  // a, b
  static constexpr int kKeys = kWalkers * kBox;              // c, partner
  static constexpr int kFull = 2 * kKeys;                    // g and x in float32; or x as two halves
  static constexpr int kWalkerRegisters = 208;               // 168 at launch, dealt out anew
  static constexpr int kHelperRegisters = 3 * 168 - kWalkers * kWalkerRegisters;
  // A stage: as the copy engine brings it; then the summed log2 decays in the place of g, and y in that of c.
  static constexpr int kA = 0, kB = kSide, kC = 2 * kSide, kG = kC + kKeys, kX = kG + kFull, kPartner = kX + kFull;
  static constexpr int kStage = kReversed ? kPartner + kKeys : kX;
  // Beside it, for two chunks in turn. Scores P [32, 32] of each head, without the pairs that y leaves out, a high
  // and a low part, swizzled by 64 bytes; its two squares of 16 tokens in float32, rows of kPairRow bytes. By
  // channel the log2 scale L of the state and the factor that takes it there, of the chunk or of each half; and the
  // Ways of the chunk and of its halves, in the order of the walk.
  static constexpr int kHigh = 0, kLow = 2048, kPairs = 4096, kPairRow = 96, kSquare = kHalf * kPairRow;
  static constexpr int kHeadScores = kPairs + 2 * kSquare;
  static constexpr int kOfRows = 4 * kWalkers * kRows;  // a number for each channel
  static constexpr int kLeft = kHeads * kHeadScores, kFactor = kLeft + 2 * kOfRows, kWays = kFactor + 2 * kOfRows,
                       kBeside = (kWays + 3 * 4 + 511) / 512 * 512;
  static constexpr int kBesides = 2;
  static constexpr int kAlignment = 1024;                                           // of swizzled panels
  static constexpr int kMost = 227 * 1024 - kAlignment - kBesides * kBeside - 256;  // of all stages
  static constexpr int kStages = kMost / kStage < 5 ? kMost / kStage : 5;
  static constexpr int kOfBeside = kStages * kStage;
  static constexpr int kOrigins =
      kOfBeside + kBesides * kBeside;  // [kHeads] of 16 bytes: whose a, b, c and partner
  static constexpr int kLowPlaces =
      kOrigins + 16 * kHeads;  // see WalkerMemory::low_place(): 16 bytes for each warp
  static constexpr int kBarriers = kLowPlaces + 16 * 4 * kWalkers;
  static constexpr int kBytes = kBarriers + 8 * (2 * kStages + kBesides);
  static_assert(kStages >= 3 && kBytes + kAlignment <= 227 * 1024);
};

// What one block works on, and where its shared memory is.
template <int kHeads, int kColumns, bool kReversed>
struct Block {
  using L = Layout<kHeads, kColumns, kReversed>;
  int32_t row, first, length, chunks, tile;
  int64_t index;  // of its run
  int32_t heads[kHeads];
  uint32_t base;          // shared address
  unsigned char *memory;  // the same, as a pointer

  __device__ __forceinline__ Block(const Params &p, unsigned char *shared, int64_t number) {
    base = (shared_address(shared) + L::kAlignment - 1) & ~(L::kAlignment - 1);
    memory = shared + (base - shared_address(shared));
    index = number / p.blocks;
    const int32_t of_run = int32_t(number - index * p.blocks), item = of_run / p.walk.row_tiles;
    tile = of_run - item * p.walk.row_tiles;
#pragma unroll
    for (int i = 0; i < kHeads; ++i) heads[i] = min(item * kHeads + i, p.walk.heads - 1);
    // The same in every thread: said by a shuffle, the compiler keeps what follows from it in uniform registers.
    const Run &run = p.walk.runs[index];
    row = __shfl_sync(~0u, int32_t(run.row), 0);
    first = __shfl_sync(~0u, int32_t(run.begin), 0);
    length = __shfl_sync(~0u, run.length, 0);
    chunks = (length + kTokens - 1) / kTokens;
  }
  // The first token, within the run, of the n-th chunk that is walked through.
  __device__ __forceinline__ int32_t begin(int32_t n) const { return (kReversed ? chunks - 1 - n : n) * kTokens; }
  __device__ __forceinline__ int32_t tokens(int32_t begin) const { return min(kTokens, length - begin); }

  __device__ __forceinline__ uint32_t stage(uint32_t s) const { return base + s * L::kStage; }
  __device__ __forceinline__ uint32_t beside(int32_t n) const {
    return base + L::kOfBeside + n % L::kBesides * L::kBeside;
  }
  // Of the chunk (0) or of the half that is walked through first (1) or then (2).
  __device__ __forceinline__ Way &way(int32_t n, int of) const {
    return reinterpret_cast<Way *>(memory + (beside(n) - base) + L::kWays)[of];
  }
  __device__ __forceinline__ uint32_t barrier(uint32_t i) const { return base + L::kBarriers + 8 * i; }
  __device__ __forceinline__ uint32_t full(uint32_t s) const { return barrier(s); }
  __device__ __forceinline__ uint32_t empty(uint32_t s) const { return barrier(L::kStages + s); }
  __device__ __forceinline__ uint32_t ready(int32_t n) const { return barrier(2 * L::kStages + n % L::kBesides); }
};

__device__ __forceinline__ void store_shared_float(uint32_t to, float x) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(to), "f"(x) : "memory");
}

}  // namespace lasp::gpu::hopper::channel_backward
