// The fast kernels of the delta rule: what the preparation of a chunk leaves for the walks, and where it lies.
//
// With G the running sum of the log2 decay in a chunk of 64 tokens, strictly lower A_ij = k_i . k_j 2^(G_i - G_j)
// and lower P_ij = q_i . k_j 2^(G_i - G_j), a chunk is
//
//   N = -(I + A diag(beta))^-1 A          E = Y + N (beta Y), Y = v - 2^G k S          U = beta E
//   o = scale (2^G q S + P U)             S' = 2^G_C S + (2^(G_C - G) k)^T U
//
// and mirrored, with dU = scale P^T do + 2^(G_C - G) k dS: Z = dU + N^T (beta dU), dv = beta Z. N is strictly lower
// and has no beta outside, so that beta = 0 is exact in both. N and P are kept as a high and a low 16-bit part.
#pragma once

#include "../delta.h"
#include "../mma/ptx.cuh"
#include "../state_decay.cuh"

namespace lasp::gpu::delta_hopper {

constexpr int64_t kMultiprocessors = 132;            // of the largest GPU
constexpr int kChunk = 64, kDim = 128, kSlice = 64;  // tokens; K and V, or more; columns of V of a walker
__host__ __device__ constexpr int32_t slices_of(int32_t columns) { return (columns + kSlice - 1) / kSlice; }
// Of 128 columns: two slices, which a block has.
__host__ __device__ constexpr int32_t groups_of(int32_t columns) { return (columns + kDim - 1) / kDim; }

// A lower triangular tile of 64 x 64: its ten blocks of 16 x 16, (0, 0), (1, 0), (1, 1), (2, 0) .., each four 8 x 8
// matrices of 128 bytes by rows.
constexpr int kTile = 10 * 512;
__host__ __device__ constexpr int tile_block(int row, int column) { return row * (row + 1) / 2 + column; }

// N and P are each a pair of such tiles, high and low, which tensor cores read as they lie in memory, by rows or
// transposed: from 8 x 8 matrix to matrix in the same direction it is always as far. So the tiles are two lattices
// that interlock, with rows of blocks from the last to the first; 7 of 87 places are empty.
template <bool kLow>
struct PairTile {
  static constexpr int kRowStep = 8 * 128, kColumnStep = (kLow ? 7 : 1) * 128;
  // Of matrix (row, column), by 8 tokens.
  static __host__ __device__ constexpr int at(int row, int column) {
    return (kLow ? 23 * 128 : 0) + (row ^ 6) * kRowStep + column * kColumnStep;
  }
};
constexpr int kPair = 87 * 128;

// A chunk's slot: N, factors, P. Factors: 2^G, 2^(G_C - G) and beta of each token; 2^G_C; four numbers whose sum is
// log2 of the most by which the chunk multiplies the norm of a state; G of each token. Per channel: 2^G_C of each
// channel, and no bound.
constexpr int kToToken = 0, kToEnd = 256, kBeta = 512, kWhole = 768, kBounds = 784, kSums = 1024;  // bytes
constexpr int kFactorBytes = 1280;
constexpr int kPairN = 0, kFactors = kPair, kPairP = kFactors + kFactorBytes, kSlotBytes = kPairP + kPair;
constexpr int kSlotWithoutP = kPairP;  // as forward walks have it, which find P themselves

// What a launch of walks is for. Few long runs are cut in parts, which are walked at once, twice: from nothing, for
// what each leaves and for the map M by which it multiplies what enters it; then, once a scan over parts has found
// what enters each (parts.cu), for results.
enum class Phase : int32_t { kWhole, kEnds, kMaps, kStates, kResults };  // kMaps: M alone; kStates: ends without M
__host__ __device__ constexpr bool is_of_ends(Phase phase) {
  return phase == Phase::kEnds || phase == Phase::kMaps || phase == Phase::kStates;
}

// The workspace: where each run's slots begin, which run each slot is of, then the slots, [slots, H], and what is
// kept of parts.
struct Slots {
  // [num_runs]; [most], -1: of none. Null: each run has of_run slots, or is a stretch and has as many as that.
  int32_t *first = nullptr, *run = nullptr;
  // [most], by Run::checkpoint: where the slots of a stretch begin. Where `first` is null but this is not, slots of
  // whole runs serve their stretches.
  int32_t *stretch = nullptr;
  char *data = nullptr;
  int64_t most = 0;
  int32_t bytes = kSlotBytes;          // of a slot
  RunFilter filter = RunFilter::kAll;  // whose chunks are prepared
  Phase phase = Phase::kWhole;
  int32_t parts = 1, chunks = 0;  // of a run, of a part; 0: a run is whole
  int32_t of_stretch = 4;         // chunks, a power of two
  // States in memory are [K, columns], of which a launch has those of its v, the first of them `first_column`.
  int32_t columns = kDim, first_column = 0;
  // [num_runs, parts, H]: the state that leaves a part, [K, V]; M, transposed for forward walks; and what leaves
  // the part of the run's own M, each [K, K]. Behind `totals`, where parts can forget: forgets().
  float *states = nullptr, *maps = nullptr, *totals = nullptr;
  float *kept_maps = nullptr;  // M, by Run::segment in place of the run, and never transposed
  // DeltaHalf::kOwn: all parts are walked for their ends, and the scan goes on to what leaves the run; `totals`,
  // transposed, are then of every part. `leaving` and `transition` as DeltaForward has them, or d_leaving.
  bool own = false;
  bool maps_to_end = false;  // M of a run's last part is kept too
  // Of a forward walk for kEnds: each slice of M has a block of its own, behind all those of states, where that
  // leaves fewer multiprocessors idle.
  bool maps_alone = false;
  int32_t of_run = 0;  // slots, where they are not numbered and runs are no stretches
  float *leaving = nullptr, *transition = nullptr;
  __device__ int64_t first_of(int64_t index, int32_t part, const Run &run_there) const {
    if (first) return first[index] + int64_t{part} * chunks;
    return stretch ? stretch[run_there.checkpoint] : index * of_stretch;
  }
  // The same where slots need no numbers. Walks of mma/ always number them: they have no register for this test.
  __device__ int64_t first_of_part(int64_t index, int32_t part, const Run &run_there) const {
    return of_run > 0 ? index * of_run + int64_t{part} * chunks : first_of(index, part, run_there);
  }
  __device__ int32_t of_each() const { return of_run > 0 ? of_run : of_stretch; }
  __device__ int64_t run_of(int64_t slot) const { return run ? run[slot] : slot / of_each(); }
  __device__ int64_t chunk_of(int64_t slot, int64_t index) const {
    return run ? slot - first[index] : slot % of_each();
  }
  __host__ __device__ int64_t state_of(int64_t index, int32_t part, int32_t heads, int32_t head) const {
    return ((index * parts + part) * heads + head) * kDim * kDim;
  }
  // From the states of 128 columns to those of the next ones, where a launch has both.
  __host__ __device__ int64_t of_group(const DeltaInputs &p) const { return state_of(p.num_runs, 0, p.heads, 0); }
  // Whether less than the decay cutoff is left of what enters a part. Not a pointer of its own: with one more
  // parameter kernels of mma/ spill registers.
  __device__ int32_t &forgets(const DeltaInputs &p, int64_t index, int32_t part, int32_t head) const {
    auto *const all = reinterpret_cast<int32_t *>(totals + state_of(p.num_runs, 0, p.heads, 0));
    return all[(index * parts + part) * p.heads + head];
  }
  __device__ int log2_of_stretch() const { return __popc(of_stretch - 1); }  // a division takes forty instructions
  // Leaves of a run what the part has. Whether tokens come after it.
  __device__ bool cut(Run &run, int32_t part) const {
    if (chunks == 0) return false;
    const int64_t begin = int64_t{part} * chunks * kChunk, end = begin + int64_t{chunks} * kChunk;
    const bool after = end < run.length;
    run.begin += begin;
    run.length = int32_t((after ? end : run.length) - begin);
    return after;
  }
  __host__ __device__ char *at(int64_t slot, int32_t heads, int32_t head) const {
    return data + (slot * heads + head) * bytes;
  }
  // Whether walks give nothing but what leaves their part or run.
  __host__ __device__ bool for_ends() const { return own || is_of_ends(phase); }
};

// With a decay per head or per token a part may forget what enters it: then it needs no M, and few of its chunks
// have a share in what leaves it.
__host__ __device__ constexpr bool can_forget(const PassInputs &p) {
  return p.decay == Decay::kHead || p.decay == Decay::kScalar;
}

// Whether a block of a walk for ends has one slice of `slices`, not two: a chunk takes less time then. It pays
// where each slice has a multiprocessor; and where parts can forget, so that most blocks are short, from parts of
// `least_chunks` on.
__host__ __device__ inline bool walks_alone(const DeltaInputs &p, const Slots &slots, int32_t slices,
                                            int32_t least_chunks) {
  if (!slots.for_ends()) return false;
  return (can_forget(p) && slots.chunks >= least_chunks) ||
         p.num_runs * slots.parts * p.heads * slices <= kMultiprocessors;
}

__device__ __forceinline__ bool takes(RunFilter filter, const Run &run) {
  return filter == RunFilter::kAll || (filter == RunFilter::kDependent) == (run.entered != 0);
}

constexpr int64_t round_up(int64_t x, int64_t to) { return (x + to - 1) / to * to; }
// Of num_runs runs with as many chunks together.
inline int64_t index_bytes(int64_t num_runs, int64_t most) { return round_up(4 * (num_runs + 2 * most), 256); }
inline int64_t slots_bytes(int64_t num_runs, int64_t most, int32_t heads, int32_t bytes) {
  return index_bytes(num_runs, most) + most * heads * bytes;
}
inline Slots place_slots(int64_t num_runs, int64_t most, int32_t bytes, void *workspace) {
  Slots s;
  s.most = most, s.bytes = bytes;
  s.first = static_cast<int32_t *>(workspace);
  s.run = s.first + num_runs, s.stretch = s.run + most;
  s.data = static_cast<char *>(workspace) + index_bytes(num_runs, most);
  return s;
}

// Where there are no more runs than rows, each has as many slots as the longest may need: nothing is to be
// numbered.
inline void place_by_runs(Slots &s, const DeltaInputs &p) {
  if (p.num_runs > p.batch || p.tokens == 0) return;
  s.first = s.run = s.stretch = nullptr;
  s.of_run = int32_t((p.tokens + kChunk - 1) / kChunk), s.most = p.num_runs * s.of_run;
}

// Where a launch of gradients takes parts in place of stretches: `units` of them, each a part of a run, and of each
// `chunks` chunks from `begin` on, where a checkpoint is. `chunks` 0: it takes stretches.
struct Window {
  int64_t first_unit = 0, units = 0;
  int32_t begin = 0, chunks = 0;
};

// What the chunks of stretches, or of windows, leave for their gradients, by (its number in the launch, head, group
// of 128 columns of V) and chunk: the state before it [K, V] and E [64, V], in 16 bits. Both lie as in shared
// memory: panels of 64 columns, whose rows are 128 swizzled bytes.
struct Stretches {
  static constexpr int kStateBytes = 2 * kDim * kDim, kTokenBytes = 2 * kChunk * kDim;
  static constexpr int64_t kBytes = kStateBytes + kTokenBytes;  // of a chunk and head
  const void *checkpoints = nullptr;
  char *data = nullptr;
  int32_t of_stretch = 4;  // chunks; or of a window
  int32_t groups = 1;
  Window window;
  // `item`: of a head and group.
  __host__ __device__ char *states_of(int64_t item, int chunk) const {
    return data + (item * of_stretch + chunk) * kBytes;
  }
  __host__ __device__ char *tokens_of(int64_t item, int chunk) const {
    return states_of(item, chunk) + kStateBytes;
  }
};

// Which slots are whose, if that has to be told; `stretches`: also where stretches have them. Then N, factors and,
// if there is a q, P of every chunk of every run, where decay is not per channel (mma/delta_prepare.cu).
int launch_number_slots(const DeltaInputs &p, const Slots &slots, bool stretches, Stream stream);
int launch_prepare(const DeltaInputs &p, const Slots &slots, Stream stream);

// Tensors may begin anywhere, but the fast way to copy their rows is by pieces of 16 bytes. Where a tensor does not
// begin on such a piece, all those that are read go the slow way.
__device__ __forceinline__ bool begins_on_piece(const void *data) {
  return (reinterpret_cast<uintptr_t>(data) & 15) == 0;
}
__device__ __forceinline__ void copy_slowly(uint32_t to, const void *from, bool valid) {
  uint32_t x[4] = {};
  if (valid) {
    const auto *const elements = static_cast<const uint16_t *>(from);
#pragma unroll
    for (int i = 0; i < 4; ++i) x[i] = elements[2 * i] | uint32_t{elements[2 * i + 1]} << 16;
  }
  store_shared_16(to, uint4{x[0], x[1], x[2], x[3]});
}
// copy(i) for i < kCount, which is copy_16 or copy_slowly.
template <int kCount, typename Copy>
__device__ __forceinline__ void copy_pieces(bool slow, Copy copy) {
  if (!slow) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) copy(i, [](auto... x) { mma::copy_16(x...); });
  } else {
#pragma unroll 1
    for (int i = 0; i < kCount; ++i) copy(i, [](auto... x) { copy_slowly(x...); });
  }
}
__device__ __forceinline__ void store_piece(void *to, uint4 x) {
  if (begins_on_piece(to)) {
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w)
                 : "memory");
    return;
  }
  const uint32_t words[] = {x.x, x.y, x.z, x.w};
  auto *const elements = static_cast<uint16_t *>(to);
#pragma unroll
  for (int i = 0; i < 8; ++i) elements[i] = uint16_t(words[i / 2] >> 16 * (i % 2));
}

// What enters each part, in place of what the part before it leaves of nothing: from `states` and `maps` of phase
// kEnds. `totals`: the same of the maps.
int launch_scan_parts(const DeltaInputs &p, const Slots &slots, bool reversed, bool totals, Stream stream);
// DeltaHalf::kEntered: the same from what kOwn has found, for runs that state_in ([states, H, K, V]) enters.
int launch_enter_parts(const DeltaInputs &p, const Slots &slots, bool reversed, const float *state_in,
                       Stream stream);

int load_prepare();
int load_parts();

}  // namespace lasp::gpu::delta_hopper
