// What the roles of the fused backward kernel share: its parameters, the map of shared memory, and the walk over
// chunks.
#pragma once

#include "fused_backward.h"
#include "layout.cuh"
#include "wgmma.cuh"

namespace lasp::gpu::hopper::fused {

inline constexpr int kDim = 128, kSlice = 32, kSlices = kDim / kSlice;
inline constexpr int kSegment = kFusedCheckpoint / kChunk;  // chunks
inline constexpr int kConsumers = 12;                       // warps: three warpgroups
inline constexpr int kBlockThreads = 512;
// Registers of a thread, 65536 in all: the feeding warps hand theirs to the others.
inline constexpr int kFeeds = 40, kQueries = 128, kKeys = 184, kStates = 160;

// Tiles of a chunk in the order they are loaded and used. Each is [64, 128] as two panels of 64 columns.
enum Tile { kV = 0, kDo = 1, kK = 2, kQ = 3 };

struct Params {
  CUtensorMap tiles[4];  // boxes of 64 x 64, by Tile
  CUtensorMap k_slice;   // boxes of 64 x 32
  void *d_q, *d_k, *d_v;
  Strides d_q_strides, d_k_strides, d_v_strides;
  const void *g;
  Strides g_strides;
  const Run *runs;
  const void *checkpoints;
  const float *d_state_in;
  float *d_edge_state;
  float *parts;  // [slices, B, H, T]
  int64_t batch, tokens;
  int32_t heads;
  float scale, log2_scale;
  Decay decay;
  bool decay_is_float;
};

// Of one chunk: running sums of the log2 decay, the same plus log2 of the pass's scale, and the factors from the
// chunk's start to a token, from a token to its end.
struct alignas(16) Decays {
  float sum[kChunk], scaled_sum[kChunk], from_start[kChunk], to_end[kChunk];
  float total, reserved[3];
};
struct alignas(16) WriteDecays {
  float to_end[kChunk];
  float total, reserved[3];
};
// What the gradient of a chunk's log decays is made of (see gather_decay_gradient), of this block's slice.
struct alignas(16) Parts {
  float a[kChunk], b[kChunk], c[kChunk];
  float x[4];  // by warp
};

struct Layout {
  static constexpr int kTile = 2 * kPanel;                // bytes
  static constexpr int kSliceTile = kChunk * kSlice * 2;  // [64, 32]
  static constexpr int kStateTile = kDim * kSlice * 2;    // [128, 32]
  static constexpr int kTiles = 8;                        // of the ring: two chunks
  static constexpr int kAhead = kTiles * kTile;           // v and k's slice of the segment ahead
  static constexpr int kAheadK = kAhead + kTile;
  static constexpr int kStates = kAheadK + kSliceTile;  // S before each chunk of a segment, rounded: [V, 32 of K]
  static constexpr int kGradient = kStates + kSegment * kStateTile;  // dS, rounded: [K, 32 of V]
  static constexpr int kGradientT = kGradient + kStateTile;          //              [V, 32 of K]
  static constexpr int kWeightedDo = kGradientT + kStateTile;
  static constexpr int kWeightedQ = kWeightedDo + kSliceTile;
  static constexpr int kDecays = kWeightedQ + kSliceTile;
  static constexpr int kAheadDecays = kDecays + 2 * int(sizeof(Decays));
  static constexpr int kParts = kAheadDecays + int(sizeof(WriteDecays));
  static constexpr int kBarriers = kParts + 2 * int(sizeof(Parts));
  static constexpr int kBytes = kBarriers + 8 * (2 * kTiles + 2 * kSegment + 13);
  static constexpr int kAlignment = 1024;  // of swizzled tiles
};
static_assert(Layout::kBytes + Layout::kAlignment <= 227 * 1024);

// One of the four tiles of a chunk in the ring.
struct RingTile {
  uint32_t address, full, empty, parity;
};

// What one block works on, and where its shared memory is.
struct Block {
  using L = Layout;
  Run run;
  int32_t head, slice, column, chunks, segments;
  uint32_t base;          // shared address
  unsigned char *memory;  // the same, as a pointer

  __device__ __forceinline__ Block(const Params &p, unsigned char *shared) {
    base = (smem_address(shared) + L::kAlignment - 1) & ~(L::kAlignment - 1);
    memory = shared + (base - smem_address(shared));
    slice = int32_t(blockIdx.x % kSlices);
    column = slice * kSlice;
    head = int32_t(blockIdx.x / kSlices % p.heads);
    run = p.runs[blockIdx.x / kSlices / p.heads];
    chunks = (run.length + kChunk - 1) / kChunk;
    segments = (chunks + kSegment - 1) / kSegment;
  }
  // Chunks are walked from the last to the first; n counts steps.
  __device__ __forceinline__ int32_t chunk(int32_t n) const { return chunks - 1 - n; }
  __device__ __forceinline__ int32_t tokens(int32_t chunk) const {
    return min(kChunk, run.length - chunk * kChunk);
  }

  __device__ __forceinline__ RingTile tile(int32_t n, Tile which) const {
    const uint32_t index = 4 * uint32_t(n) + which, turn = index / L::kTiles, slot = index % L::kTiles;
    return {base + slot * L::kTile, barrier(slot), barrier(L::kTiles + slot), turn & 1};
  }
  // Columns [column, column + 32) of row `row` of a tile: byte offset of their 16-byte piece `piece`.
  __device__ __forceinline__ uint32_t slice_offset(uint32_t row, uint32_t piece) const {
    return uint32_t(slice / 2) * kPanel + tile_offset<64>(row, (slice % 2) * 4 + piece);
  }
  // Those columns of a tile as an operand: half a swizzled panel, for products over its rows.
  __device__ __forceinline__ uint64_t slice_descriptor(uint32_t tile) const {
    return tile_descriptor<128>(tile + uint32_t(slice / 2) * kPanel + uint32_t(slice % 2) * 64);
  }

  // Segments are counted from the last, too. The states of one segment take the place of those of the one after it
  // while those are used up, from both ends of the segment: hence every other one lies backwards.
  __device__ __forceinline__ int32_t count(int32_t chunk) const { return segments - 1 - chunk / kSegment; }
  __device__ __forceinline__ uint32_t slot(int32_t count, int32_t i) const {
    return count & 1 ? kSegment - 1 - i : i;
  }
  __device__ __forceinline__ uint32_t state(uint32_t slot) const {
    return base + L::kStates + slot * L::kStateTile;
  }

  __device__ __forceinline__ Decays &decays(int32_t n) const {
    return reinterpret_cast<Decays *>(memory + L::kDecays)[n & 1];
  }
  __device__ __forceinline__ WriteDecays &ahead_decays() const {
    return *reinterpret_cast<WriteDecays *>(memory + L::kAheadDecays);
  }
  __device__ __forceinline__ Parts &parts(int32_t n) const {
    return reinterpret_cast<Parts *>(memory + L::kParts)[n & 1];
  }

  __device__ __forceinline__ uint32_t barrier(uint32_t i) const { return base + L::kBarriers + 8 * i; }
  __device__ __forceinline__ uint32_t state_full(uint32_t slot) const { return barrier(2 * L::kTiles + slot); }
  __device__ __forceinline__ uint32_t state_empty(uint32_t slot) const {
    return barrier(2 * L::kTiles + kSegment + slot);
  }
  static constexpr uint32_t kOthers = 2 * L::kTiles + 2 * kSegment;
  __device__ __forceinline__ uint32_t tail() const { return barrier(kOthers); }
  __device__ __forceinline__ uint32_t ahead_full() const { return barrier(kOthers + 1); }
  __device__ __forceinline__ uint32_t ahead_empty() const { return barrier(kOthers + 2); }
  __device__ __forceinline__ uint32_t gradient_full() const { return barrier(kOthers + 3); }
  __device__ __forceinline__ uint32_t gradient_empty() const { return barrier(kOthers + 4); }
  __device__ __forceinline__ uint32_t decays_full(int32_t n) const { return barrier(kOthers + 5 + (n & 1)); }
  __device__ __forceinline__ uint32_t decays_empty(int32_t n) const { return barrier(kOthers + 7 + (n & 1)); }
  __device__ __forceinline__ uint32_t parts_full(int32_t n) const { return barrier(kOthers + 9 + (n & 1)); }
  __device__ __forceinline__ uint32_t parts_empty(int32_t n) const { return barrier(kOthers + 11 + (n & 1)); }

  __device__ __forceinline__ void wait_decays(int32_t n) const { barrier_wait(decays_full(n), n / 2 & 1); }
  // Until the parts of the step before last have been read; then they may be written. Each warp says when it has.
  __device__ __forceinline__ void wait_parts(int32_t n) const { barrier_wait(parts_empty(n), (n / 2 & 1) ^ 1); }
  __device__ __forceinline__ void finish_parts(int32_t n) const { warp_arrive(parts_full(n)); }
  __device__ __forceinline__ void finish_decays(int32_t n) const { warp_arrive(decays_empty(n)); }

  // Gives a tile back to every block of the cluster: all their copy warps write into it. Once per warp.
  // Twice where the state group, which does not read this tile, is to be counted, too.
  template <int kTimes = 1>
  static __device__ __forceinline__ void release(uint32_t empty, uint32_t blocks) {
    __syncwarp();
    const uint32_t lane = threadIdx.x % 32;
    if constexpr (kWarpArrivals == 1) {
      if (lane < kTimes * blocks) barrier_arrive_cluster(cluster_address(empty, lane / kTimes));
    } else {
      for (uint32_t i = 0; i < kTimes * blocks; ++i) barrier_arrive_cluster(cluster_address(empty, i / kTimes));
    }
  }
};

// Element 4j + 2r + e of an accumulator is row `row + 8r`, column `8j + column + e`.
struct Place {
  int32_t warp, row, column;
  __device__ __forceinline__ Place()
      : warp(__shfl_sync(~0u, int32_t(threadIdx.x % 128 / 32), 0)),
        row(warp * 16 + threadIdx.x % 32 / 4),
        column(threadIdx.x % 4 * 2) {}
};

__device__ __forceinline__ uint32_t load_shared_4(uint32_t from) {
  uint32_t v;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(from));
  return v;
}
__device__ __forceinline__ uint4 load_matrices(uint32_t from) {
  uint4 v;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(from)
               : "memory");
  return v;
}
__device__ __forceinline__ float add_quad(float x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}

// scores [64, 64] = a b^T of two tiles.
template <typename T>
__device__ __forceinline__ void multiply_scores(float (&scores)[32], uint32_t a_tile, uint32_t b_tile) {
  const uint64_t a = tile_descriptor<128>(a_tile), b = tile_descriptor<128>(b_tile);
  wgmma_begin();
#pragma unroll
  for (int k = 0; k < kDim / 16; ++k) {
    const uint32_t step = k / 4 * kPanel + k % 4 * 32;
    wgmma<T, false, false>(scores, advance(a, step), advance(b, step), k > 0);
  }
  wgmma_commit();
}
// y [64, 32] = a R of a tile and a rounded state [128, 32]. The caller begins and commits.
template <typename T>
__device__ __forceinline__ void multiply_state(float (&y)[16], uint32_t a_tile, uint32_t state) {
  const uint64_t a = tile_descriptor<128>(a_tile), s = tile_descriptor<64>(state);
#pragma unroll
  for (int k = 0; k < kDim / 16; ++k)
    wgmma<T, false, true>(y, advance(a, k / 4 * kPanel + k % 4 * 32), advance(s, k * 16 * 64), k > 0);
}
// y [64, 32] += scores times the slice of a tile. Likewise.
template <typename T>
__device__ __forceinline__ void multiply_slice(float (&y)[16], const uint32_t (&scores)[16], uint64_t slice) {
#pragma unroll
  for (int k = 0; k < kChunk / 16; ++k) wgmma<T, true>(y, scores + 4 * k, advance(slice, k * 16 * 128));
}

// Stores this block's columns of dq, dk or dv, from the last chunk to the first.
template <typename T>
class SliceStore {
 public:
  __device__ __forceinline__ SliceStore(const Block &block, void *data, const Strides &strides)
      : eight_rows_(8 * strides.token),
        to_(static_cast<T *>(data) + block.run.row * strides.batch + block.head * strides.head +
            (block.run.begin + int64_t(block.chunks - 1) * kChunk + Place().row) * strides.token + block.column +
            threadIdx.x % 4 * 8) {}

  // This warp's rows of y, those before `tokens`, and on to the chunk before: lanes of a quad exchange, so that
  // each stores 16 bytes and all of them 64 in a row.
  __device__ __forceinline__ void store(const float (&y)[16], int32_t tokens) {
    const bool odd = threadIdx.x & 1, high = threadIdx.x & 2;
    uint32_t m[2][4];
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
      for (int j = 0; j < 4; ++j) m[r][j] = Pair<T>::pack(y[4 * j + 2 * r], y[4 * j + 2 * r + 1]);
#pragma unroll
    for (int r = 0; r < 2; ++r) exchange(m[r][0], m[r][1], odd, 1), exchange(m[r][2], m[r][3], odd, 1);
#pragma unroll
    for (int r = 0; r < 2; ++r) exchange(m[r][0], m[r][2], high, 2), exchange(m[r][1], m[r][3], high, 2);
#pragma unroll
    for (int r = 0; r < 2; ++r)
      if (Place().row + 8 * r < tokens)
        store_global_16(to_ + r * eight_rows_, {m[r][0], m[r][1], m[r][2], m[r][3]});
    to_ -= 8 * eight_rows_;
  }

 private:
  static __device__ __forceinline__ void exchange(uint32_t &low, uint32_t &high, bool upper, int step) {
    const uint32_t got = __shfl_xor_sync(~0u, upper ? low : high, step);
    low = upper ? got : low;
    high = upper ? high : got;
  }
  int64_t eight_rows_;
  T *to_;
};

// From scores to weighted scores: those of a pair of tokens times `scale` and exp2 of the decay between them, 0
// where the later token is not later. Scores are [earlier, later] where kLaterColumns, else [later, earlier]; the
// weight of a pair has the same bits either way.
template <bool kLaterColumns>
class Weights {
 public:
  __device__ __forceinline__ Weights()
      : over_(int32_t(threadIdx.x % 32 / 4) - at_.column), source_((threadIdx.x & 28) + threadIdx.x % 32 / 8) {}
  __device__ __forceinline__ void load(const Decays &decays) {
    const float *const rows = kLaterColumns ? decays.sum : decays.scaled_sum, *const columns =
                                                                                  kLaterColumns ? decays.scaled_sum
                                                                                                : decays.sum;
    row_[0] = rows[at_.row], row_[1] = rows[at_.row + 8];
#pragma unroll
    for (int j = 0; j < 8; ++j) column_[j] = *reinterpret_cast<const float2 *>(columns + 8 * j + at_.column);
  }
  // Calls f(element, weight) for the elements of 16 columns, block 0..3, and returns true; but where all of them
  // are masked for this warp, it returns false.
  template <typename F>
  __device__ __forceinline__ bool each(int block, F f) const {
    if (kLaterColumns ? block < at_.warp : block > at_.warp) return false;
    float x[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float2 column = column_[2 * block + i / 4];
      const float c = i % 2 ? column.y : column.x, r = row_[i / 2 % 2];
      x[i] = kLaterColumns ? c - r : r - c;
    }
    if (block == at_.warp) {
      // Of the four 8 x 8 squares one is all masked, one is not, and two share the diagonal.
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int right = i / 4, low = i / 2 % 2;
        if (right == low ? (kLaterColumns ? over_ > i % 2 : over_ < i % 2) : (right != 0) != kLaterColumns)
          x[i] = -INFINITY;
      }
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) f(8 * block + i, exp2_fast(x[i]));
    return true;
  }
  // Takes the pairs of a token with itself out of the scores of a block: of this lane's column they go to `own`.
  __device__ __forceinline__ void take_own(int block, float (&scores)[32], float (&own)[2]) const {
    if (block != at_.warp) return;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float &even = scores[8 * block + 6 * r], &odd = scores[8 * block + 6 * r + 1];
      own[r] = threadIdx.x & 4 ? odd : even;
      if (over_ == 0) even = 0;
      if (over_ == 1) odd = 0;
    }
  }
  // From each lane's columns to its rows.
  __device__ __forceinline__ void hand_own(float (&own)[2]) const {
    own[0] = __shfl_sync(~0u, own[0], source_), own[1] = __shfl_sync(~0u, own[1], source_);
  }

 private:
  const Place at_;
  const int32_t over_,
      source_;  // row less column in a square of the diagonal; the lane that holds this lane's row's
  float row_[2];
  float2 column_[8];
};

// This thread's elements of the slice of a tile, as they lie in an accumulator [64, 32].
struct SliceElements {
  uint32_t pairs[8];
  __device__ __forceinline__ void load(uint32_t tile, const Block &block) {
    const Place at;
#pragma unroll
    for (int i = 0; i < 8; ++i)
      pairs[i] = load_shared_4(tile + block.slice_offset(at.row + 8 * (i % 2), i / 2) + at.column * 2);
  }
  // For each of two rows, its dot product with y, in all lanes of its quad.
  template <typename T>
  __device__ __forceinline__ float2 dot(const float (&y)[16]) const {
    float dots[4] = {0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float2 x = Pair<T>::unpack(pairs[i]);
      dots[i % 4] = fmaf(x.x, y[2 * i], fmaf(x.y, y[2 * i + 1], dots[i % 4]));
    }
    return {add_quad(dots[0] + dots[2]), add_quad(dots[1] + dots[3])};
  }
  // y += each row's factor times these.
  template <typename T>
  __device__ __forceinline__ void add_to(float (&y)[16], const float (&factor)[2]) const {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float2 x = Pair<T>::unpack(pairs[i]);
      y[2 * i] = fmaf(factor[i % 2], x.x, y[2 * i]), y[2 * i + 1] = fmaf(factor[i % 2], x.y, y[2 * i + 1]);
    }
  }
};

}  // namespace lasp::gpu::hopper::fused
