// What the roles of the channel pass share: its parameters, the map of shared memory, and the walk over chunks.
//
// A walker owns a unit: 64 columns of y and of the state of one head. A block has two units that follow each other,
// and one chunk at a time. Its tiles have 128 channels: those of one head; or 64 for each of its units, whose heads
// may be one and the same. So it is where K is 64, and for the last 64 channels where K is 192.
#pragma once

#include "../launch.h"
#include "layout.cuh"

namespace lasp::gpu::hopper::channel {

inline constexpr int kTokens = 32;                // of a chunk
inline constexpr int kDim = 128;                  // channels of a tile
inline constexpr int kHalf = kTokens / 2;         // the pivot of a chunk lies between its halves
inline constexpr int kBoxPanel = kTokens * 128;   // bytes of 32 rows of 64 elements
inline constexpr int kWalkers = 2, kScalers = 2;  // warpgroups
inline constexpr int kWalkerColumns = 64;         // of y
inline constexpr int kThreads = (kWalkers + kScalers) * 128;
inline constexpr int kWalkerRegisters = 168, kScalerRegisters = 88;  // 128 at launch, dealt out anew

struct Params {
  CUtensorMap a, b, c, g;
  void *y;
  const Run *runs;
  const float *state_in;
  float *state_out, *edge_state;
  Strides y_strides;
  int64_t state_size;  // elements of a whole state, of which these rows are some
  int32_t heads, a_heads, b_heads, c_heads, y_dim;
  int32_t units, blocks;  // units of a head, blocks of a run
  float scale, in_scale, out_scale;
  DType decay_dtype;
  bool reversed, adds;  // y, which sums over the state's rows, to what is there
};

template <int kHeads>
struct Layout {
  static constexpr int kWidth = kDim / kHeads;         // channels of a head
  static constexpr int kHeadPanels = kWidth / 64;      // panels of 64 columns, swizzled by 128 bytes
  static constexpr int kTile = kDim / 64 * kBoxPanel;  // a, b
  static constexpr int kStages = kHeads == 1 ? 5 : 4;
  // A stage: as the copy engine brings it; then a and b scaled in place, and in the place of g what b's rounding
  // has left out, and where half chunks have a decay each their sums [half, half of it] and the last one of the
  // state.
  static constexpr int kA = 0, kB = kTile, kC = 2 * kTile, kG = kC + kWalkers * kBoxPanel, kLow = kG,
                       kSums = kG + kTile, kLast = kSums + 4 * 4 * kDim, kStage = kG + kTokens * kDim * 4;
  // Beside it: scores [32, 32] of each head, swizzled by 64 bytes; and the state's decay by channel. Of a chunk
  // with one pivot up to that, with one in each half up to the first, and from there to the other; without one up
  // to the chunk, and over its halves (kMiddle, kLast). Before, kBefore and kMiddle hold the log2 decays of the
  // halves.
  static constexpr int kHeadScores = kTokens * kTokens * 2;
  static constexpr int kScores = 0, kBefore = kHeads * kHeadScores, kMiddle = kBefore + 4 * kDim,
                       kBeside = kMiddle + 4 * kDim;
  static constexpr int kOfBeside = kStages * kStage;
  static constexpr int kStaging = kOfBeside + kStages * kBeside;  // of y, for each warp of the walkers
  static constexpr int kWarpStaging = kTokens * 32;
  static constexpr int kPending = kStaging + 4 * kWalkers * kWarpStaging;  // log2 decay that the next chunk has
  static constexpr int kCompensation = kPending + 4 * kDim;                // see state_decay
  static constexpr int kPivots = kCompensation + 4 * kDim;                 // [kStages]
  static constexpr int kOrigins = kPivots + (kStages + 3) / 4 * 16;        // [kHeads] of 16 bytes
  static constexpr int kBarriers = kOrigins + 16 * kHeads;
  static constexpr int kBytes = kBarriers + 8 * (3 * kStages + 2);
  static constexpr int kAlignment = 1024;  // of swizzled tiles
  static_assert(kStage % kAlignment == 0 && kBeside % 512 == 0 && kBarriers % 8 == 0 &&
                kBytes + kAlignment <= 227 * 1024);
};

// How a chunk is decayed (channel_scale.cuh): from one pivot; as two half chunks from a pivot each; or as two half
// chunks from their ends.
enum class Pivot : int { kChunk, kHalves, kNone };

// What one block works on, and where its shared memory is. Of the run there is what every chunk needs.
template <int kHeads>
struct Block {
  using L = Layout<kHeads>;
  int32_t row, first, length, chunks;
  int32_t heads[kHeads], panels[kHeads];  // whose channels there are, and the first 64 columns of y of each
  uint32_t base;                          // shared address
  unsigned char *memory;                  // the same, as a pointer

  static __device__ __forceinline__ const Run &run(const Params &p) { return p.runs[blockIdx.x / p.blocks]; }
  // The index of its state: Run::state and head.
  static __device__ __forceinline__ int64_t state(const Params &p, int32_t head) {
    return run(p).state * p.heads + head;
  }

  __device__ __forceinline__ Block(const Params &p, unsigned char *shared) {
    base = (shared_address(shared) + L::kAlignment - 1) & ~(L::kAlignment - 1);
    memory = shared + (base - shared_address(shared));
#pragma unroll
    for (int i = 0; i < kHeads; ++i) {
      const int32_t unit = int32_t(blockIdx.x % p.blocks) * kWalkers + i, head = unit / p.units;
      const bool exists = head < p.heads;
      heads[i] = exists ? head : p.heads - 1, panels[i] = exists ? unit - head * p.units : p.units;
    }
    // The same in every thread: said by a shuffle, the compiler keeps what follows from it in uniform registers.
    row = __shfl_sync(~0u, int32_t(run(p).row), 0);
    first = __shfl_sync(~0u, int32_t(run(p).begin), 0);
    length = __shfl_sync(~0u, run(p).length, 0);
    chunks = (length + kTokens - 1) / kTokens;
  }
  // The first token, within the run, of the n-th chunk that is walked through.
  __device__ __forceinline__ int32_t begin(const Params &p, int32_t n) const {
    return (p.reversed ? chunks - 1 - n : n) * kTokens;
  }
  __device__ __forceinline__ int32_t tokens(int32_t begin) const { return min(kTokens, length - begin); }

  __device__ __forceinline__ uint32_t stage(uint32_t s) const { return base + s * L::kStage; }
  __device__ __forceinline__ uint32_t beside(uint32_t s) const { return base + L::kOfBeside + s * L::kBeside; }
  __device__ __forceinline__ float *floats(uint32_t address) const {
    return reinterpret_cast<float *>(memory + (address - base));
  }
  __device__ __forceinline__ Pivot &pivot(uint32_t s) const {
    return reinterpret_cast<Pivot *>(memory + L::kPivots)[s];
  }
  __device__ __forceinline__ uint32_t origin(int i) const { return base + L::kOrigins + 16 * i; }
  __device__ __forceinline__ uint32_t barrier(uint32_t i) const { return base + L::kBarriers + 8 * i; }
  __device__ __forceinline__ uint32_t full(uint32_t s) const { return barrier(s); }
  __device__ __forceinline__ uint32_t ready(uint32_t s) const { return barrier(L::kStages + s); }
  __device__ __forceinline__ uint32_t empty(uint32_t s) const { return barrier(2 * L::kStages + s); }
  __device__ __forceinline__ uint32_t chain(uint32_t i) const { return barrier(3 * L::kStages + i); }
};

// 16 bytes of a tile of 32 rows in panels.
__device__ __forceinline__ uint32_t piece_offset(uint32_t row, uint32_t piece) {
  return piece / 8 * kBoxPanel + row * 128 + (((piece % 8) ^ (row & 7)) << 4);
}
__device__ __forceinline__ uint32_t load_shared(uint32_t from) {
  uint32_t v;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(from) : "memory");
  return v;
}
__device__ __forceinline__ float2 load_shared_pair(uint32_t from) {
  float2 v;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(from) : "memory");
  return v;
}
__device__ __forceinline__ void store_shared(uint32_t to, uint32_t v) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(to), "r"(v) : "memory");
}
__device__ __forceinline__ void store_shared_pair(uint32_t to, float2 v) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to), "f"(v.x), "f"(v.y) : "memory");
}

}  // namespace lasp::gpu::hopper::channel
