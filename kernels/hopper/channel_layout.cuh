// What the roles of the channel pass share: its parameters, the map of shared memory, and the walk over chunks.
#pragma once

#include "../launch.h"
#include "layout.cuh"

namespace lasp::gpu::hopper::channel {

inline constexpr int kTokens = 32;                // of a chunk
inline constexpr int kHalf = kTokens / 2;         // the pivot of a chunk lies between its halves
inline constexpr int kBoxPanel = kTokens * 128;   // bytes of 32 rows of 64 elements
inline constexpr int kWalkers = 2, kScalers = 2;  // warpgroups
inline constexpr int kWalkerColumns = 64;         // of y
inline constexpr int kSlice = kWalkers * kWalkerColumns;
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
  const float *entry_decay;
  int32_t heads, a_heads, b_heads, c_heads, slices, y_dim;
  float scale, in_scale, out_scale;
  DType decay_dtype;
  RunFilter filter;
  bool reversed, adds;  // y, which sums over the state's rows, to what is there
};

template <int kDim>
struct Layout {
  static constexpr int kPanels = kDim / 64;
  static constexpr int kTile = kPanels * kBoxPanel;  // a, b: panels of 64 columns, swizzled by 128 bytes
  static constexpr int kStages = 5;
  // A stage: as the copy engine brings it; then a and b scaled in place, and in the place of g what b's rounding
  // has left out, and where half chunks have a decay each their sums [half, half of it] and the last of kDecays.
  static constexpr int kA = 0, kB = kTile, kC = 2 * kTile, kG = kC + kWalkers * kBoxPanel, kLow = kG,
                       kSums = kG + kTile, kLast = kSums + 4 * 4 * kDim, kStage = kG + kTokens * kDim * 4;
  // Beside it: scores [32, 32], swizzled by 64 bytes; and the state's decay by channel. Of a chunk with one pivot
  // up to that, with one in each half up to the first, and from there to the other; without one up to the chunk,
  // and over its halves (kMiddle, kLast). Before, kBefore and kMiddle hold the log2 decays of the halves.
  static constexpr int kScores = 0, kBefore = kTokens * kTokens * 2, kMiddle = kBefore + 4 * kDim,
                       kBeside = kMiddle + 4 * kDim;
  static constexpr int kOfBeside = kStages * kStage;
  static constexpr int kStaging = kOfBeside + kStages * kBeside;  // of y, for each warp of the walkers
  static constexpr int kWarpStaging = kTokens * 32;
  static constexpr int kPending = kStaging + 4 * kWalkers * kWarpStaging;  // log2 decay that the next chunk has
  static constexpr int kCompensation = kPending + 4 * kDim;                // see state_decay
  static constexpr int kPivots = kCompensation + 4 * kDim;                 // [kStages]
  static constexpr int kBarriers = kPivots + 4 * (kStages + 1) / 2 * 2;
  static constexpr int kBytes = kBarriers + 8 * (3 * kStages + 2);
  static constexpr int kAlignment = 1024;  // of swizzled tiles
  static_assert(kStage % kAlignment == 0 && kBeside % 512 == 0 && kBarriers % 8 == 0 &&
                kBytes + kAlignment <= 227 * 1024);
};

// How a chunk is decayed (channel_scale.cuh): from one pivot; as two half chunks from a pivot each; or as two half
// chunks from their ends.
enum class Pivot : int { kChunk, kHalves, kNone };

// What one block works on, and where its shared memory is. Of the run there is what every chunk needs.
template <int kDim>
struct Block {
  using L = Layout<kDim>;
  int32_t row, first, length, head, slice, chunks;
  uint32_t base;          // shared address
  unsigned char *memory;  // the same, as a pointer

  static __device__ __forceinline__ const Run &run(const Params &p) {
    return p.runs[blockIdx.x / p.slices / p.heads];
  }
  // The index of its state: Run::state and head.
  __device__ __forceinline__ int64_t state(const Params &p) const { return run(p).state * p.heads + head; }

  __device__ __forceinline__ Block(const Params &p, unsigned char *shared) {
    base = (shared_address(shared) + L::kAlignment - 1) & ~(L::kAlignment - 1);
    memory = shared + (base - shared_address(shared));
    slice = int32_t(blockIdx.x % p.slices);
    head = int32_t(blockIdx.x / p.slices % p.heads);
    // The same in every thread: said by a shuffle, the compiler keeps what follows from it in uniform registers.
    row = __shfl_sync(~0u, int32_t(run(p).row), 0);
    first = __shfl_sync(~0u, int32_t(run(p).begin), 0);
    length = __shfl_sync(~0u, run(p).length, 0);
    chunks = (length + kTokens - 1) / kTokens;
  }
  __device__ __forceinline__ bool wanted(const Params &p) const {
    if (chunks == 0 || p.filter == RunFilter::kAll) return chunks > 0;
    const bool dependent = run(p).entered && !is_below_cutoff(p.entry_decay[state(p)]);
    return dependent == (p.filter == RunFilter::kDependent);
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
