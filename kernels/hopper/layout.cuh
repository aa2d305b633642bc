// What the roles of the linear-pass kernel share: its parameters, the map of shared memory, and the walk over
// chunks.
#pragma once

#include "../counted_tokens.cuh"
#include "../state_decay.cuh"
#include "ptx.cuh"

namespace lasp::gpu::hopper {

inline constexpr int kChunk = 64;            // tokens
inline constexpr int kPanel = kChunk * 128;  // bytes of 64 rows of 64 elements
inline constexpr int kOutputGroups = 2;      // warpgroups that compute y, chunk by chunk in turn

struct PassParams {
  CUtensorMap a, b, c;
  void *y;
  const void *g;
  const Run *runs;
  const float *state_in;
  float *state_out, *edge_state;
  void *checkpoints;
  Strides y_strides, g_strides;
  int64_t state_row, state_column;  // strides within a state [a.dim, y.dim]
  int32_t state_size;               // elements; of a pass over some rows the whole state's
  bool adds;                        // y, which sums over those rows, to what is there
  int32_t heads, a_heads, b_heads, c_heads, a_dim, y_dim;
  float scale, in_scale, out_scale;
  Decay decay;
  bool reversed, decay_is_float;
  RunFilter filter;
  const int32_t *counts;
  bool counts_by_head;
  const float *entry_decay;
};

// Log decays (base 2) of one chunk, worked out by the decay warp. `row` and `write` are the factors of the incoming
// state in each token's output and of each token in the outgoing state.
struct alignas(16) ChunkDecay {
  float sum[kChunk], row[kChunk], write[kChunk];
  float total, nearest, reserved[2];  // decay of the incoming state; of all that `write` adds
};

template <int kDim, int kSlice>
struct Layout {
  static constexpr int kPanels = kDim / 64;
  static constexpr int kTile = kPanels * kPanel;  // a, b: [64, kDim] as panels of 64 columns, swizzled by 128 bytes
  static constexpr int kSliceTile = kChunk * kSlice * 2;  // c: [64, kSlice], swizzled by its width
  static constexpr int kStateTile = kDim * kSlice * 2;
  static constexpr int kStages = kSlice == 32 || kDim == 64 ? 4 : 3;
  // Warpgroups: output, state, scale (where registers allow; else the output groups scale), and producer, whose
  // first two warps copy and prepare the decay. Registers a thread: at launch 65536 / kThreads, then dealt out
  // anew.
  static constexpr bool kScaleGroup = kSlice == 32;
  static constexpr int kProducerGroup = kOutputGroups + (kScaleGroup ? 2 : 1);
  static constexpr int kThreads = (kProducerGroup + 1) * 128;
  static constexpr int kOutputRegisters = kScaleGroup ? 128 : 152, kStateRegisters = kScaleGroup ? 120 : 152;
  static constexpr int kScaleRegisters = 56, kProducerRegisters = kScaleGroup ? 48 : 56;

  // Both parts of the scaled c (scale_tokens.cuh) in one tile of twice the width, where the state group has the
  // registers to multiply by both at once: b is then read once for both.
  static constexpr bool kSideBySide = kSlice == 32;

  static constexpr int kA = 0, kB = kTile, kC = 2 * kTile, kStage = 2 * kTile + kSliceTile;
  static constexpr int kScaled = kStages * kStage;         // 2 x (high, low) of the scaled c
  static constexpr int kState = kScaled + 4 * kSliceTile;  // 2 x the state, rounded
  static constexpr int kY = kState + 2 * kStateTile;       // staging, a tile for each output group
  static constexpr int kDecay = kY + kOutputGroups * kSliceTile;
  static constexpr int kBarriers = kDecay + kStages * int(sizeof(ChunkDecay));
  static constexpr int kBytes = kBarriers + 8 * (3 * kStages + 9);
  static constexpr int kAlignment = 1024;  // of swizzled tiles
};

// Byte offset of 16-byte piece `piece` of row `row` in a tile that is kSlice (32 or 64) elements wide.
template <int kSlice>
__device__ __forceinline__ uint32_t tile_offset(uint32_t row, uint32_t piece) {
  if constexpr (kSlice == 32) return row * 64 + ((piece ^ (row >> 1 & 3)) << 4);
  return row * 128 + ((piece ^ (row & 7)) << 4);
}

// Use n of a ring of kStages buffers: of buffer `stage` in round n / kStages. Each round completes one phase of
// each of a buffer's mbarriers, and an mbarrier tells the phases apart by whether they are odd.
template <int kStages>
struct RingIndex {
  uint32_t stage = 0, odd_round = 0;
  static __device__ __forceinline__ RingIndex of(uint32_t n) { return {n % kStages, n / kStages % 2}; }
  __device__ __forceinline__ void next() {
    if (++stage == kStages) stage = 0, odd_round ^= 1;
  }
};
// Until the barrier's phase of this round is complete (a buffer is full), or that of the round before (its last use
// is over), which does not hold up the first round.
template <int kStages>
__device__ __forceinline__ void wait_this_round(uint32_t barrier, RingIndex<kStages> use) {
  barrier_wait(barrier, use.odd_round);
}
template <int kStages>
__device__ __forceinline__ void wait_round_before(uint32_t barrier, RingIndex<kStages> use) {
  barrier_wait(barrier, use.odd_round ^ 1);
}

// What one block works on: columns of the state of one run of one head.
struct RunBlock {
  Run run;
  int64_t state;                        // the index of its state: Run::state and head
  int32_t head, column, chunks, first;  // the chunks walked through, and the first of them in the run

  // `scalar`: the decay is per token, and known when the kernel is compiled.
  __device__ __forceinline__ RunBlock(const PassParams &p, uint32_t slice, bool scalar) {
    const uint32_t slices = p.y_dim / slice;
    column = int32_t(blockIdx.x % slices * slice);
    head = int32_t(blockIdx.x / slices % p.heads);
    run = p.runs[blockIdx.x / slices / p.heads];
    // The same in every thread: said by a shuffle, the compiler keeps what follows from it in uniform registers.
    run.row = __shfl_sync(~0u, run.row, 0);
    run.begin = __shfl_sync(~0u, run.begin, 0);
    run.state = __shfl_sync(~0u, run.state, 0);
    run.length = __shfl_sync(~0u, run.length, 0);
    state = run.state * p.heads + head;
    chunks = (run.length + kChunk - 1) / kChunk, first = 0;
    if (scalar ? p.counts != nullptr : p.counts_by_head) {
      int32_t tokens = run.length;  // of an empty entry the counts are another run's
      if (!scalar)
        tokens = counted_tokens(run, static_cast<const float *>(p.g)[head], p.reversed);
      else if (tokens > 0)
        tokens = p.counts[state];
      tokens = __shfl_sync(~0u, tokens, 0);
      if (!p.reversed) first = (run.length - tokens) / kChunk;
      chunks = p.reversed ? (tokens + kChunk - 1) / kChunk : chunks - first;
    }
  }
  // The n-th chunk that is walked through.
  __device__ __forceinline__ int32_t chunk(const PassParams &p, int32_t n) const {
    return p.reversed ? chunks - 1 - n : first + n;
  }
  __device__ __forceinline__ int32_t tokens(int32_t chunk) const {
    return min(kChunk, run.length - chunk * kChunk);
  }
};

// That, and where its shared memory is.
template <int kDim, int kSlice>
struct Block : RunBlock {
  using L = Layout<kDim, kSlice>;
  uint32_t base;          // shared address
  unsigned char *memory;  // the same, as a pointer

  __device__ __forceinline__ Block(const PassParams &p, unsigned char *shared, bool scalar)
      : RunBlock(p, kSlice, scalar) {
    base = (shared_address(shared) + L::kAlignment - 1) & ~(L::kAlignment - 1);
    memory = shared + (base - shared_address(shared));
  }
  // The same for all blocks of a cluster.
  __device__ __forceinline__ bool wanted(const PassParams &p) const {
    if (chunks == 0 || p.filter == RunFilter::kAll) return chunks > 0;
    const bool dependent = run.entered && !is_below_cutoff(p.entry_decay[state]);
    return dependent == (p.filter == RunFilter::kDependent);
  }

  __device__ __forceinline__ uint32_t stage(uint32_t s) const { return base + s * L::kStage; }
  __device__ __forceinline__ uint32_t scaled(uint32_t i) const { return base + L::kScaled + i * 2 * L::kSliceTile; }
  __device__ __forceinline__ uint32_t rounded_state(uint32_t i) const {
    return base + L::kState + i * L::kStateTile;
  }
  __device__ __forceinline__ ChunkDecay &decay(uint32_t s) const {
    return reinterpret_cast<ChunkDecay *>(memory + L::kDecay)[s];
  }
  __device__ __forceinline__ uint32_t barrier(uint32_t i) const { return base + L::kBarriers + 8 * i; }
  __device__ __forceinline__ uint32_t full(uint32_t s) const { return barrier(s); }
  __device__ __forceinline__ uint32_t empty(uint32_t s) const { return barrier(L::kStages + s); }
  __device__ __forceinline__ uint32_t free(uint32_t s) const { return barrier(2 * L::kStages + s); }
  __device__ __forceinline__ uint32_t state_full(uint32_t i) const { return barrier(3 * L::kStages + i); }
  __device__ __forceinline__ uint32_t state_empty(uint32_t i) const { return barrier(3 * L::kStages + 2 + i); }
  __device__ __forceinline__ uint32_t scaled_full(uint32_t i) const { return barrier(3 * L::kStages + 4 + i); }
  __device__ __forceinline__ uint32_t scaled_empty(uint32_t i) const { return barrier(3 * L::kStages + 6 + i); }
  __device__ __forceinline__ uint32_t tail() const { return barrier(3 * L::kStages + 8); }
};

// Inclusive running sums of a chunk's log decays, two tokens a lane, and their total.
__device__ __forceinline__ float2 running_sums(float2 g, float *total) {
  const int32_t lane = threadIdx.x % 32;
  float sum = g.x + g.y;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const float before = __shfl_up_sync(~0u, sum, step);
    if (lane >= step) sum += before;
  }
  *total = __shfl_sync(~0u, sum, 31);
  return {sum - g.y, sum};
}

// Once a warp: its reads of shared memory, or its stores to it, are done. The race checker follows threads and not
// warps: for it every lane arrives (LASP_EVERY_LANE_ARRIVES).
#ifdef LASP_EVERY_LANE_ARRIVES
constexpr uint32_t kWarpArrivals = 32;
#else
constexpr uint32_t kWarpArrivals = 1;
#endif
__device__ __forceinline__ void warp_arrive(uint32_t barrier) {
  __syncwarp();
  if (threadIdx.x % 32 < kWarpArrivals) barrier_arrive(barrier);
}

}  // namespace lasp::gpu::hopper
