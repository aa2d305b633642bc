// What the parts of the mma linear pass share: its parameters, which part of the work a block has, and where
// everything lies in shared memory.
#pragma once

#include "../counted_tokens.cuh"
#include "../state_decay.cuh"
#include "ptx.cuh"

namespace lasp::gpu::mma {

// On what the decay acts: tokens alone (none, per head, per token), or channels, which are the columns (a.dim) or
// the rows (y.dim) of the state as the accumulators hold it, [y.dim, a.dim].
enum class Kind { kToken, kColumns, kRows };

// How y leaves: rounded to the tensors' type; or as a gradient that is float32, or joins what is there.
enum class Result { kRounded, kGradient };
inline Result result_of(const LinearPass &pass) {
  return pass.y.data && (pass.y_float32 || pass.y_adds) ? Result::kGradient : Result::kRounded;
}

struct PassParams : LinearPass {
  int32_t stages = 3;       // chunks in shared memory
  int32_t slices = 1;       // blocks of a (run, head)
  int32_t slice_warps = 1;  // 16 rows of y each
  // A pass over some columns of the state: how many it has in memory, where state pointers are at the first of
  // these; and whether y, which sums over columns, is added to what is there.
  int32_t whole_columns = 0;
  bool adds = false;
};

constexpr int kChunk = 16;             // tokens
constexpr int kMostColumns = 256;      // that a state warp has registers for
constexpr int kHalf = kChunk / 2;      // the pivot of decays lies between the halves of a chunk
constexpr int kProducerThreads = 128;  // all scale; half of them score while the others copy
constexpr int kLeastStages = 3, kMostStages = 5;

// Of what two chunks are under way at a time, the copy that a chunk has.
__device__ __forceinline__ int copy_of(int chunk) { return chunk & 1; }

// State warps of a block at most: a wider state needs more registers for each.
template <int kDim>
constexpr int kStateWarps = kDim <= 128 ? 8 : 4;

// Offsets in shared memory, bytes. Rows of 16-bit tiles are padded by 16 bytes, so that eight of them meet all
// banks. Of what two chunks are under way at a time there are two copies, [2].
template <int kDim, Kind kKind>
struct Layout {
  static constexpr int kMostThreads = 32 * kStateWarps<kDim> + kProducerThreads;
  static constexpr int kRows = 16 * kStateWarps<kDim>;                   // of y, at most
  static constexpr int kChannels = kKind == Kind::kRows ? kRows : kDim;  // that a block has decays for
  static constexpr int kWide = 2 * kDim + 16, kNarrow = 2 * kRows + 16;  // a row of a and b; of c and y
  static constexpr int kScoreRow = 2 * kChunk + 16, kYRow = 2 * 16 + 16;
  static constexpr int kFactorRow = 4 * kRows + 16;  // rows of float32 factors of y
  // One stage.
  static constexpr int kA = 0, kB = kA + kChunk * kWide, kC = kB + kChunk * kWide, kG = kC + kChunk * kNarrow;
  static constexpr int kStageBytes = kG + (kKind == Kind::kToken ? 0 : kChunk * kChannels * 4);
  // Before the stages.
  static constexpr int kRestBytes = kChunk * (kKind == Kind::kRows ? kNarrow : kWide);
  static constexpr int kFactorBytes = kKind == Kind::kRows ? kChunk * kFactorRow : kChunk * 4;
  static constexpr int kDecayBytes = kKind == Kind::kToken ? 16 : 4 * kChannels;
  static constexpr int kRest = 0;                                          // [2] low parts of what is scaled
  static constexpr int kY = kRest + 2 * kRestBytes;                        // each state warp's y on its way out
  static constexpr int kScores = kY + kStateWarps<kDim> * kChunk * kYRow;  // [2] decayed, masked, 16 bits
  static constexpr int kFactors = kScores + 2 * kChunk * kScoreRow;        // [2] of y
  static constexpr int kBefore = kFactors + 2 * kFactorBytes;              // [2] the state's decay before y
  static constexpr int kAfter = kBefore + 2 * kDecayBytes;                 // [2] and between y and the update
  static constexpr int kPending = kAfter + 2 * kDecayBytes;     // log2 decay that the next chunk takes over
  static constexpr int kCompensation = kPending + kDecayBytes;  // see state_decay
  static constexpr int kTotals = kCompensation + kDecayBytes;   // [2 halves] log2 decay
  static constexpr int kTokens = kTotals + 2 * kDecayBytes;     // [2] log2 decay by token; to_end by token
  static constexpr int kToEnd = kTokens + 2 * 4 * kChunk;
  static constexpr int kDirect = kToEnd + 4 * kChunk;  // [2] whether the chunk's decay is too strong
  static constexpr int kExact = kDirect + 16;          // scores in float32, of such a chunk
  static constexpr int kFirstStage = kExact + (kKind == Kind::kRows ? kChunk * kChunk * 4 : 0);
  static_assert(kFirstStage % 16 == 0 && kStageBytes % 16 == 0);
  static constexpr int bytes(int stages) { return kFirstStage + stages * kStageBytes; }
};

// A block's part: a run of one head, and rows of y; chunk by chunk in the order of the walk. A reversed walk takes
// the tokens from the last to the first, each with the decay of the token that it took before; the first token's
// own decay comes last, with a row that holds nothing else.
struct Part {
  Run run;
  int32_t head, first_row, rows, chunks;
  bool reversed;
  __device__ Part(const PassParams &p, int64_t item) {
    const int32_t slice = static_cast<int32_t>(item % p.slices);
    head = static_cast<int32_t>(item / p.slices % p.heads);
    run = p.runs[item / p.slices / p.heads];
    first_row = slice * p.slice_warps * 16;
    rows = min(p.slice_warps * 16, p.y.dim - first_row);
    reversed = p.reversed;
    const bool counts = p.counts || p.counts_by_head;
    if (counts && run.length > 0 && !p.y.data && !p.state_in) {  // the rest counts for nothing
      const int32_t tokens = p.counts_by_head ? counted_tokens(run, static_cast<const float *>(p.g)[head], reversed)
                                              : p.counts[run.state * p.heads + head];
      if (!reversed) run.begin += run.length - tokens;
      run.length = tokens;
    }
    const int32_t last = run.length + (reversed && p.decay != Decay::kNone ? 1 : 0);
    chunks = (last + kChunk - 1) / kChunk;
  }
  __device__ bool wanted(const PassParams &p) const {
    if (run.length == 0 || p.filter == RunFilter::kAll) return run.length > 0;
    const bool dependent = run.entered && !is_below_cutoff(p.entry_decay[run.state * p.heads + head]);
    return dependent == (p.filter == RunFilter::kDependent);
  }
  // Row `at` of the walk.
  __device__ int64_t token(int32_t at) const { return run.begin + (reversed ? run.length - 1 - at : at); }
  __device__ bool has_decay(int32_t at) const { return reversed ? at > 0 && at <= run.length : at < run.length; }
  __device__ int64_t decay_token(int32_t at) const { return run.begin + (reversed ? run.length - at : at); }
};

// Where in shared memory the chunk lies that a role is at.
struct Ring {
  int32_t stage = 0;
  __device__ __forceinline__ void next(int32_t stages) { stage = stage + 1 == stages ? 0 : stage + 1; }
};

// All of a block's threads, wherever each stands in the code. Racecheck and synccheck know barrier 0 as
// __syncthreads alone, at which all threads stand in one place: built with LASP_EVERY_LANE_ARRIVES all meet at an
// mbarrier instead.
#ifdef LASP_EVERY_LANE_ARRIVES
static __shared__ uint64_t meeting;
__device__ __forceinline__ void init_meeting() {
  if (threadIdx.x > 0) return;
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(&meeting)), "r"(blockDim.x) : "memory");
}
__device__ __forceinline__ void sync_all() {
  uint64_t phase;
  asm volatile("mbarrier.arrive.shared.b64 %0, [%1];" : "=l"(phase) : "r"(shared_address(&meeting)) : "memory");
  for (int all = 0; all == 0;)
    asm volatile("{\n.reg .pred p;\nmbarrier.test_wait.shared.b64 p, [%1], %2;\nselp.b32 %0, 1, 0, p;\n}"
                 : "=r"(all)
                 : "r"(shared_address(&meeting)), "l"(phase)
                 : "memory");
}
#else
__device__ __forceinline__ void init_meeting() {}
__device__ __forceinline__ void sync_all() { asm volatile("bar.sync 0;" ::: "memory"); }
#endif

// Log decay to base 2. Where it is -infinity so are sums, and their powers are 0: nothing subtracts them.
__device__ __forceinline__ float log2_decay(float g) { return g * kLog2E; }

}  // namespace lasp::gpu::mma
