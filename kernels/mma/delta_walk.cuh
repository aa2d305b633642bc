// What the walks of the delta rule by mma.sync share. A block walks a (run, head, slice of 64 columns of V); a warp
// has 16 of these columns and all rows of K, as the accumulators of the state transposed. Rounded in place they are
// left operands, so that nothing on the chain from chunk to chunk leaves the warp: a block's warps share copies
// alone. Chunks, N, P and their slots are those of the walks in delta/ (../delta/layout.cuh).
//
// Where blocks are few, they are split (kSplit 2): 32 columns, two warps for 16 of them with half of K's rows each
// (delta_partner.cuh), four warps that copy (delta_chunks.cuh), and four that help: forward with outputs
// (delta_outputs.cuh), back with P^T do (delta_terms.cuh), and in both with what is kept.
#pragma once

#include "delta_walks.h"

namespace lasp::gpu::mma_delta {

using delta_hopper::begins_on_piece, delta_hopper::copy_pieces, delta_hopper::PairTile, delta_hopper::Slots,
    delta_hopper::store_piece, delta_hopper::takes;
using delta_hopper::kBeta, delta_hopper::kChunk, delta_hopper::kFactors, delta_hopper::kPair, delta_hopper::kPairN,
    delta_hopper::kPairP, delta_hopper::kSlice, delta_hopper::kSums, delta_hopper::kToEnd, delta_hopper::kToToken,
    delta_hopper::kWhole;
using mma::multiply, mma::pack_rest;

constexpr int kTokens8 = kChunk / 8;
constexpr int kRole = 128;  // threads that walk, of each other role, and of a block that is not split
__host__ __device__ constexpr int columns_of_block(int split) { return kSlice / split; }
__host__ __device__ constexpr int threads_of_block(int split) { return split > 1 ? 3 * kRole : kRole; }
__host__ __device__ constexpr int32_t blocks_of_columns(int32_t columns, int split) {
  return (columns + columns_of_block(split) - 1) / columns_of_block(split);
}

// A stage: a chunk of k and of q, by rows of kRows elements; a block's columns of v; N and factors but G as a slot
// has them; P. Rows are 16 bytes longer, so that eight of them are in different banks.
__host__ __device__ constexpr int row_bytes(int elements) { return 2 * elements + 16; }
template <int kSplit>
constexpr int kSliceRow = row_bytes(columns_of_block(kSplit));
template <int kRows, int kSplit>
struct Stage {
  static constexpr int kRow = row_bytes(kRows);
  static constexpr int kOfSlot = kFactors - kPairN + kSums;
  static constexpr int kK = 0, kV = kChunk * kRow, kN = kV + kChunk * kSliceRow<kSplit>, kQ = kN + kOfSlot,
                       kP = kQ + kChunk * kRow, kBytes = kP + kPair;
  static constexpr int kOfFactors = kN + kFactors - kPairN;
};

// In a way that keeps the compiler from holding addresses in registers from chunk to chunk.
__device__ __forceinline__ int this_thread() {
  int thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return thread;
}
__device__ __forceinline__ int this_lane() { return threadIdx.x % 32; }
__device__ __forceinline__ int this_warp() { return threadIdx.x % kRole / 32; }  // of its role

// How many registers a role of a split block has: on 9.0 those that copy give theirs to those that walk. By all
// threads of the role. A sum above what the block has would wait for ever.
constexpr int kRegisters = 65536 / threads_of_block(2) / 8 * 8, kCopyRegisters = 96, kWalkRegisters = 240;
static_assert(kRegisters == 168 && kCopyRegisters + kWalkRegisters == 2 * kRegisters);
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
constexpr bool kGivesRegisters = true;
#else
constexpr bool kGivesRegisters = false;
#endif
template <int kCount>
__device__ __forceinline__ void have_registers() {
  if constexpr (kGivesRegisters && kCount > kRegisters) {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
  } else if constexpr (kGivesRegisters) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
  }
}
// How many times 16 rows of K sums are found of at once, by a warp with kOwn rows or fewer. They may reach beyond
// its rows; what is found there is not used.
template <int kOwn, int kSplit>
constexpr int kRowsAtOnce = kOwn > 128                                    ? 1
                            : kSplit > 1 && kOwn > 64 && !kGivesRegisters ? 2
                                                                          : 4;

// Which (run, head) and which of the launch's slices a block has, those of M after those of V.
struct Place {
  Run run;
  int64_t slot;                    // of the run's first chunk, for walks
  int32_t head, slice, chunks;     // no chunks: there is nothing to do
  bool transition, outputs, slow;  // walks M; reads q and P; copies by the slow way
  bool helped;                     // four warps have outputs, and keep states

  // The run's index.
  template <class Pass>
  __device__ __forceinline__ int64_t start(const Pass &p, int64_t block, int32_t slices) {
    slice = int32_t(block % slices), head = int32_t(block / slices % p.heads);
    const int64_t index = block / slices / p.heads;
    run = p.runs[index];
    chunks = takes(p.filter, run) ? (run.length + kChunk - 1) / kChunk : 0;
    transition = outputs = helped = false;
    return index;
  }
};
static_assert(sizeof(Place) == 96);  // with 104 what follows it lies elsewhere, and gradients take 3% longer

// ---- A warp. Accumulators [16 columns of V] x [8 tokens, or rows of K]: (r, 2q..), (r + 8, 2q..) with r = lane /
// 4, q = lane % 4.

using Tokens = float[kTokens8][4];

// Of the warp in its block's columns; which of those with the same columns it is.
template <int kSplit>
__device__ __forceinline__ int first_column() {
  return this_warp() % (4 / kSplit) * 16;
}
template <int kSplit>
__device__ __forceinline__ int this_half() {
  return this_warp() * kSplit / 4;
}

__device__ __forceinline__ float2 load_pair(uint32_t from) {
  float2 x;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x.x), "=f"(x.y) : "r"(from) : "memory");
  return x;
}
__device__ __forceinline__ float load_float(uint32_t from) {
  float x;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(from) : "memory");
  return x;
}
// The factors of this lane's tokens of 8.
__device__ __forceinline__ float2 factors_of(uint32_t factors, int tokens8) {
  return load_pair(factors + 32 * tokens8 + 8 * (this_lane() % 4));
}
__device__ __forceinline__ void scale_tokens(Tokens &y, uint32_t factors) {
#pragma unroll
  for (int n = 0; n < kTokens8; ++n) {
    const float2 f = factors_of(factors, n);
    y[n][0] *= f.x, y[n][1] *= f.y, y[n][2] *= f.x, y[n][3] *= f.y;
  }
}

// Two neighbouring tiles of accumulators as a left operand, a high and a low part.
template <typename T>
__device__ __forceinline__ void split(const float (&x)[4], const float (&y)[4], uint32_t (&high)[4],
                                      uint32_t (&low)[4]) {
  high[0] = pack<T>(x[0], x[1]), high[1] = pack<T>(x[2], x[3]);
  high[2] = pack<T>(y[0], y[1]), high[3] = pack<T>(y[2], y[3]);
  low[0] = pack_rest<T>(x[0], x[1], high[0]), low[1] = pack_rest<T>(x[2], x[3], high[1]);
  low[2] = pack_rest<T>(y[0], y[1], high[2]), low[3] = pack_rest<T>(y[2], y[3], high[3]);
}

// Of so many tokens' accumulators times their factors; `first` of 8.
template <typename T>
__device__ __forceinline__ void split_scaled(const float (&x)[4], const float (&y)[4], uint32_t factors, int first,
                                             uint32_t (&high)[4], uint32_t (&low)[4]) {
  const float2 f = factors_of(factors, first), g = factors_of(factors, first + 1);
  split<T>({f.x * x[0], f.y * x[1], f.x * x[2], f.y * x[3]}, {g.x * y[0], g.y * y[1], g.x * y[2], g.y * y[3]}, high,
           low);
}

// y += left B, where B has 16 tokens as columns.
template <typename T>
__device__ __forceinline__ void multiply_16(float (&y)[4], float (&next)[4], const uint32_t (&left)[4],
                                            const uint32_t (&b)[4]) {
  multiply<T>(y, left, b[0], b[1]);
  multiply<T>(next, left, b[2], b[3]);
}

// y += 16 rows of the state (of which `high` and `low` are left operands) times those columns of a tile of k or q.
template <typename T, int kRows, bool kLow>
__device__ __forceinline__ void multiply_rows(Tokens &y, const uint32_t (&high)[4], const uint32_t (&low)[4],
                                              uint32_t tile, int step) {
  constexpr int kRow = row_bytes(kRows);
  const int lane = this_lane();
  const uint32_t from = tile + (lane % 8 + lane / 16 * 8) * kRow + lane / 8 % 2 * 16 + 32 * step;
#pragma unroll
  for (int n = 0; n < kChunk / 16; ++n) {
    uint32_t b[4];
    load_matrices(b, from + 16 * n * kRow);
    if constexpr (kLow) multiply_16<T>(y[2 * n], y[2 * n + 1], low, b);
    multiply_16<T>(y[2 * n], y[2 * n + 1], high, b);
  }
}

// y += those 16 tokens `from` of x (high and low) times block (to, from) of a lower triangular pair, transposed; or
// kBack, block (from, to) as it is.
// kLow: x has a low part.
template <typename T, bool kBack, bool kLow = true>
__device__ __forceinline__ void multiply_block(float (&y)[4], float (&next)[4], const uint32_t (&high)[4],
                                               const uint32_t (&low)[4], uint32_t pair, int to, int from) {
  const int lane = this_lane(), half = lane / 16, other = lane / 8 % 2;
  // The operand's columns are 8 tokens `to` + half, its rows 8 tokens `from` + other.
  const int row = kBack ? 2 * from + other : 2 * to + half, column = kBack ? 2 * to + half : 2 * from + other;
  uint32_t b[4], b_low[4];
  if constexpr (kBack) {
    load_matrices_transposed(b, pair + PairTile<false>::at(row, column) + lane % 8 * 16);
    load_matrices_transposed(b_low, pair + PairTile<true>::at(row, column) + lane % 8 * 16);
  } else {
    load_matrices(b, pair + PairTile<false>::at(row, column) + lane % 8 * 16);
    load_matrices(b_low, pair + PairTile<true>::at(row, column) + lane % 8 * 16);
  }
  if constexpr (kLow) multiply_16<T>(y, next, low, b);
  multiply_16<T>(y, next, high, b_low);
  multiply_16<T>(y, next, high, b);
}

// sum (16 kPairs rows of K from `first`) += x in two parts times rows of a tile of k or q, over tokens.
template <typename T, int kRows, int kPairs, bool kLow = true>
__device__ __forceinline__ void multiply_tokens(float (&sum)[2 * kPairs][4], const uint32_t (&high)[4][4],
                                                const uint32_t (&low)[4][4], uint32_t tile, int first) {
  constexpr int kRow = row_bytes(kRows);
  const int lane = this_lane();
  const uint32_t from = tile + (lane / 8 % 2 * 8 + lane % 8) * kRow + 2 * (first + lane / 16 * 8);
#pragma unroll
  for (int t = 0; t < kChunk / 16; ++t)
#pragma unroll
    for (int half = 0; half < kPairs; ++half) {
      uint32_t b[4];
      load_matrices_transposed(b, from + 16 * t * kRow + 32 * half);
      if constexpr (kLow) multiply_16<T>(sum[2 * half], sum[2 * half + 1], low[t], b);
      multiply_16<T>(sum[2 * half], sum[2 * half + 1], high[t], b);
    }
}

// The warp's columns of 16 tokens of a block's tile, transposed: as pairs of accumulators.
template <typename T, int kSplit>
__device__ __forceinline__ void load_columns(uint32_t (&pairs)[4], uint32_t tile, int tokens16) {
  const int lane = this_lane(), row = 16 * tokens16 + lane / 16 * 8 + lane % 8;
  load_matrices_transposed(pairs, tile + row * kSliceRow<kSplit> + 2 * (first_column<kSplit>() + lane / 8 % 2 * 8));
}

// Tokens times a factor and rounded, to the warp's own columns of a block's tile: of the blocks of 16 tokens that
// takes(block) names.
template <typename T, int kSplit, typename Takes>
__device__ __forceinline__ void put_tokens(const Tokens &y, float factor, uint32_t tile, Takes takes) {
  const int lane = this_lane();
  __syncwarp();  // they may have been read
#pragma unroll
  for (int n = 0; n < kTokens8; ++n)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (!takes(n / 2)) continue;
      uint32_t x = pack<T>(factor * y[n][2 * half], factor * y[n][2 * half + 1]);
      asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %0;" : "+r"(x));
      const uint32_t at =
          tile + (8 * n + lane / 4) * kSliceRow<kSplit> + 2 * (first_column<kSplit>() + 8 * half + lane % 4 * 2);
      asm volatile("st.shared.u32 [%0], %1;" ::"r"(at), "r"(x) : "memory");
    }
  __syncwarp();
}
// The same on to a tensor of the block's head and columns, 16 bits a number.
template <typename T, int kSplit, typename Takes>
__device__ __forceinline__ void store_tokens(const Tokens &y, float factor, uint32_t tile, const Tensor &t,
                                             const Place &place, int32_t heads, int chunk, Takes takes) {
  const int lane = this_lane();
  put_tokens<T, kSplit>(y, factor, tile, takes);
  const int own = first_column<kSplit>() + lane % 2 * 8, column = place.slice * columns_of_block(kSplit) + own;
  const int count = column < t.dim ? place.run.length - chunk * kChunk : 0;
  T *const to = static_cast<T *>(t.data) + column +
                offset_of(t, place.run.row, place.run.begin + chunk * kChunk, place.head, heads);
#pragma unroll
  for (int i = 0; i < kChunk / 16; ++i) {
    if (!takes(i)) continue;
    const int row = 16 * i + lane / 2;
    const uint4 x = load_shared_16(tile + row * kSliceRow<kSplit> + 2 * own);
    if (row < count) store_piece(to + row * t.strides.token, x);
  }
}

// A warp's columns of a state, and its share of their rows.
template <int kRows, int kSplit>
struct StateColumns {
  static constexpr int kOwn = kRows / kSplit;  // rows, or fewer
  float s[kOwn / 8][4];

  // Rows of each warp, of `rows` in all: by 32, so that two steps of 16 need one test.
  static __device__ __forceinline__ int share_of(int rows) {
    return kSplit > 1 ? (rows + 32 * kSplit - 1) / (32 * kSplit) * 32 : rows;
  }
  // The warp's first one of them, and how many there are.
  static __device__ __forceinline__ int first_row(int rows) { return this_half<kSplit>() * share_of(rows); }
  static __device__ __forceinline__ int own_rows(int rows) { return min(share_of(rows), rows - first_row(rows)); }

  // f(element, its offset in a state in memory, its row, its column) of what there is of [rows, columns].
  template <typename F>
  __device__ __forceinline__ void each_there(int rows, int columns, int slice, F f) {
    const int row = this_lane() % 4 * 2, own = own_rows(rows), first = first_row(rows),
              column = slice * columns_of_block(kSplit) + first_column<kSplit>() + this_lane() / 4;
#pragma unroll
    for (int j = 0; j < kOwn / 8; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int its_row = 8 * j + row + i % 2, its_column = column + i / 2 * 8;
        if (its_row < own && its_column < columns)
          f(s[j][i], (first + its_row) * columns + its_column, first + its_row, its_column);
      }
  }
  __device__ __forceinline__ void clear() {
#pragma unroll
    for (auto &tile : s)
#pragma unroll
      for (float &x : tile) x = 0;
  }
};

}  // namespace lasp::gpu::mma_delta
