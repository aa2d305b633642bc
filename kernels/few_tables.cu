// The tables of a packing of few sequences, in one range. What the general kernel (packed_tables.cu) needs its time
// for is its own code, fetched from memory once in a pass, and blocks that wait for their threads. Here a thread
// finds a sequence and a block makes a table: of each entry it finds the segment, and is done.
#include "device.cuh"
#include "packed_tables.h"
#include "warp_sums.cuh"
#include "zero_padding.cuh"

namespace lasp::gpu {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32, kBlocksOfTable = 4, kBlocksThatClear = 32;  // times four
constexpr int kMostTables = 17;                                                                   // of a cut

// What an entry is; and of runs and parts of runs, which of a segment's are in the table.
enum class Entry : int8_t { kSegment, kPart, kRun, kShortRun, kShortSegment, kEnteredState, kEmptySequence };
enum class Which : int8_t { kAll, kFollowed, kLeading, kConsumers, kIndependent, kBeginnings };

struct FewTable {
  void *data;
  int64_t size;
  Entry entry;
  Which which;
  int8_t reversed, cut;
};

struct FewTables {
  const void *offsets;
  int64_t *live;
  PackedRange range;
  int32_t sequences;
  bool wide;
  unsigned num_tables;  // blocks from there on clear padding
  ZeroPadding padding;
  CutTokens cuts[kMostCuts];
  PackedShortRuns short_runs[kMostCuts];
  FewTable tables[kMostCuts * kMostTables + 1];
};

// Offsets of the host, as parameters.
struct GivenOffsets {
  int32_t at[kThreads];
};
static_assert(sizeof(FewTables) + sizeof(GivenOffsets) <= 4096);

// A segment, and of its parts or runs those that are in the table: `count_before` entries are of segments before
// it, its own begin with part or run `first`.
struct FewSegment {
  PackedSegment segment;
  int32_t count_before, first;
};
enum Sum { kSegments, kStates, kRuns, kCheckpoints, kCount, kSums };

struct FewShared {
  int64_t highest[kWarps], up_to[kThreads];
  int32_t of_warps[kSums][kWarps];
  FewSegment segments[kThreads];
};

struct Entries {
  int32_t first, count;
};
__device__ Entries entries_of(const PackedSegment &segment, const CutCounts &own, Which which, int reversed) {
  const bool consumes = PackedEdges(segment, reversed).consumes;
  const int32_t skipped = reversed ? own.states - own.followed[1] : 0;
  switch (which) {
    case Which::kFollowed: return {skipped, own.followed[reversed]};
    case Which::kLeading:  // where the end state leaves: all parts
      if (PackedEdges(segment, reversed).produces) return {0, own.states};
      return {skipped, own.followed[reversed]};
    case Which::kConsumers: return {0, consumes ? own.runs : 0};
    case Which::kIndependent: return {0, consumes ? 0 : own.runs};
    default: return {0, segment.starts ? 1 : 0};  // beginnings
  }
}

// What the offsets are, of which each counts as no less than all before it.
class Offsets {
 public:
  __device__ Offsets(const FewTables &p, const void *offsets, FewShared &shared) : p_(p), shared_(shared) {
    const auto higher = [](int64_t a, int64_t b) { return a > b ? a : b; };
    const int n = threadIdx.x, warp = n / 32, warps = num_warps();
    int64_t highest = INT64_MIN;
    if (warp < warps) {
      if (n <= p.sequences)
        highest = p.wide ? static_cast<const int64_t *>(offsets)[n] : static_cast<const int32_t *>(offsets)[n];
      highest = up_to<32>(highest, higher);
      if (n % 32 == 31) shared.highest[warp] = highest;
    }
    __syncthreads();
    LASP_ROLLED for (int w = 0; w < min(warp, warps); ++w) highest = higher(highest, shared.highest[w]);
    shared.up_to[n] = highest;
    __syncthreads();
  }
  // That have an offset.
  __device__ int num_warps() const { return p_.sequences / 32 + 1; }
  __device__ Piece piece(int n) const { return {shared_.up_to[n], shared_.up_to[n + 1]}; }
  __device__ int64_t in_range(int n) const { return within(shared_.up_to[n], p_.range.begin, p_.range.end); }
  // The first token of padding.
  __device__ int64_t padding() const {
    const int64_t end = in_range(p_.sequences);
    return p_.range.local + (in_range(0) < end ? end - p_.range.begin : 0);
  }

 private:
  const FewTables &p_;
  const FewShared &shared_;
};

class FewBlock {
 public:
  __device__ FewBlock(const FewTables &p, const void *offsets, FewShared &shared)
      : p_(p),
        offsets_(p, offsets, shared),
        shared_(shared),
        table_(p.tables[blockIdx.x]),
        tokens_(p.cuts[table_.cut]),
        warps_(offsets_.num_warps()) {}

  __device__ void run() {
    find_segments();
    const int64_t first = blockIdx.y * kThreads + threadIdx.x, step = gridDim.y * kThreads;
    for (int64_t i = first; i < table_.size; i += step) put(i);
    if (first == 0 && table_.entry == Entry::kSegment) tell();
    if (first == 0 && table_.entry == Entry::kEmptySequence) p_.live[kLiveEmpty] = total_[kCount];
  }

 private:
  __device__ void find_segments() {
    const int n = threadIdx.x;
    FewSegment own = {};
    int32_t sums[kSums] = {};
    bool there = false;
    if (n < p_.sequences) {
      const Piece piece = offsets_.piece(n);
      there = is_in(p_.range, piece);
      own.segment = segment_of(p_.range, piece, n);
      own.segment.first = offsets_.in_range(n) == offsets_.in_range(0);
      own.segment.last = offsets_.in_range(n + 1) == offsets_.in_range(p_.sequences);
      const CutCounts counts = count_cut(own.segment.length, tokens_);
      const Entries entries = table_.which == Which::kAll
                                  ? Entries{0, table_.entry == Entry::kPart ? counts.states : counts.runs}
                                  : entries_of(own.segment, counts, table_.which, table_.reversed);
      own.first = entries.first;
      sums[kSegments] = there, sums[kStates] = counts.states, sums[kRuns] = counts.runs;
      sums[kCheckpoints] = counts.checkpoints, sums[kCount] = there ? entries.count : 0;
      if (table_.entry == Entry::kEmptySequence) sums[kCount] = is_empty_in(p_.range, piece);
    }
    int32_t before[kSums] = {};
    sum_before(sums, before);
    own.segment.before.states = before[kStates], own.segment.before.checkpoints = before[kCheckpoints];
    own.count_before = before[kCount];
    if (there) shared_.segments[before[kSegments]] = own;
    if (table_.entry == Entry::kEmptySequence && sums[kCount] > 0)
      static_cast<int64_t *>(table_.data)[before[kCount]] = n;
    __syncthreads();
  }

  __device__ void sum_before(const int32_t (&x)[kSums], int32_t (&before)[kSums]) {
    const int warp = threadIdx.x / 32;
    const auto sum = [](int32_t a, int32_t b) { return a + b; };
    if (warp < warps_) {
#pragma unroll
      for (int i = 0; i < kSums; ++i) {
        const int32_t of_warp = up_to<32>(x[i], sum);
        before[i] = of_warp - x[i];
        if (threadIdx.x % 32 == 31) shared_.of_warps[i][warp] = of_warp;
      }
    }
    __syncthreads();
    LASP_ROLLED for (int w = 0; w < warps_; ++w)
#pragma unroll
        for (int i = 0; i < kSums; ++i) {
      const int32_t of_warp = shared_.of_warps[i][w];
      if (w < warp) before[i] += of_warp;
      total_[i] += of_warp;
    }
  }

  __device__ void put(int64_t i) const {
    switch (table_.entry) {
      case Entry::kSegment: return put_segment(i);
      case Entry::kEmptySequence:
        if (i >= total_[kCount]) static_cast<int64_t *>(table_.data)[i] = 0;
        return;
      default: break;
    }
    // Short runs are made from their run, and so are what belongs to one.
    const PackedShortRuns &shorts = p_.short_runs[table_.cut];
    const bool of_short = table_.entry == Entry::kShortRun;
    const int32_t at = of_short ? whole_parts(i, shorts.parts) : static_cast<int32_t>(i);
    const bool used = at < total_[kCount];
    Run run;
    if (used) run = run_at(at);
    switch (table_.entry) {
      case Entry::kShortSegment:
        static_cast<Segment *>(table_.data)[i] = used ? make_short_segment(shorts, run, at) : Segment();
        return;
      case Entry::kEnteredState:
        static_cast<int64_t *>(table_.data)[i] = used ? entered_state(run, tokens_, table_.reversed) : 0;
        return;
      case Entry::kShortRun:
        if (used) run = make_short_run(shorts, run, at, i - at * shorts.parts);
        break;
      default: break;
    }
    static_cast<Run *>(table_.data)[i] = run;
  }

  // Entry `at` of the runs or parts that are in the table.
  __device__ Run run_at(int32_t at) const {
    int32_t index = 0;
    for (int32_t count = total_[kSegments]; count > 1;) {
      const int32_t half = count / 2;
      if (shared_.segments[index + half].count_before <= at) index += half;
      count -= half;
    }
    const FewSegment &of = shared_.segments[index];
    const int32_t n = of.first + at - of.count_before;
    if (table_.entry == Entry::kPart) return make_state_run(of.segment, index, tokens_, n);
    // What belongs to short runs is made from runs as forward passes see them.
    return make_run(of.segment, index, tokens_, n, table_.entry == Entry::kRun ? table_.reversed : 0);
  }

  __device__ void put_segment(int64_t i) const {
    Segment to;
    if (i < total_[kSegments]) {
      const PackedSegment &from = shared_.segments[i].segment;
      to = make_segment(from, count_cut(from.length, tokens_));
    } else if (i == 0) {
      to = segment_of_none(0);
    }
    static_cast<Segment *>(table_.data)[i] = to;
  }

  // How much there is.
  __device__ void tell() const {
    const int32_t segments = total_[kSegments];
    p_.live[kLiveFollowed + table_.cut] =
        static_cast<int64_t>(total_[kRuns] - segments) * whole_parts(tokens_.run, tokens_.state);
    if (table_.cut > 0) return;
    p_.live[kLiveSegments] = segments > 0 ? segments : 1;
    p_.live[kLivePadding] = offsets_.padding();
  }

  const FewTables &p_;
  const Offsets offsets_;
  FewShared &shared_;
  const FewTable &table_;
  const CutTokens &tokens_;
  const int warps_;
  int32_t total_[kSums] = {};
};

__device__ __forceinline__ void run_few(const FewTables &p, const void *offsets) {
  __shared__ __align__(16) unsigned char memory[sizeof(FewShared)];
  FewShared &shared = reinterpret_cast<FewShared &>(memory);
  if (blockIdx.x < p.num_tables) return FewBlock(p, offsets, shared).run();
  const int64_t block = (blockIdx.x - p.num_tables) * gridDim.y + blockIdx.y,
                blocks = (gridDim.x - p.num_tables) * gridDim.y;
  const int64_t first = Offsets(p, offsets, shared).padding() + block;
  for (int i = 0; i < p.padding.count; ++i) zero_tokens(p.padding.parts[i], first, p.padding.ends[0], blocks);
}

__global__ void __launch_bounds__(kThreads) few_tables_kernel(const __grid_constant__ FewTables p) {
  run_few(p, p.offsets);
}

__global__ void __launch_bounds__(kThreads)
    given_few_tables_kernel(const __grid_constant__ FewTables p, const __grid_constant__ GivenOffsets offsets) {
  run_few(p, offsets.at);
}

// What each block makes.
class FewTableList {
 public:
  FewTableList(const PackedTables &p, const ZeroPadding &padding) {
    made_ = {};
    made_.padding = padding;
    made_.offsets = p.offsets, made_.wide = p.wide, made_.sequences = static_cast<int32_t>(p.sequences);
    made_.live = p.live, made_.range = p.ranges[0];
    add(p.empty.data, p.empty.size, Entry::kEmptySequence, Which::kAll, 0, true);
    for (cut_ = 0; cut_ < p.num_cuts; ++cut_) add_cut(p.cuts[cut_]);
  }
  const FewTables &made() const { return made_; }
  dim3 grid() const {
    return dim3(made_.num_tables + (made_.padding.count > 0 ? kBlocksThatClear : 0), kBlocksOfTable);
  }

 private:
  void add(void *data, int64_t size, Entry entry, Which which = Which::kAll, int reversed = 0, bool tells = false) {
    if (size == 0 && !tells) return;
    made_.tables[made_.num_tables++] = {
        data, size, entry, which, static_cast<int8_t>(reversed), static_cast<int8_t>(cut_)};
  }
  void add_cut(const PackedCut &from) {
    const auto runs = [&](const Table<Run> &table, Entry entry, Which which, int reversed = 0) {
      add(table.data, table.size, entry, which, reversed);
    };
    made_.cuts[cut_] = from.tokens, made_.short_runs[cut_] = from.short_runs;
    add(from.segments.data, from.segments.size, Entry::kSegment, Which::kAll, 0, true);
    runs(from.state_runs, Entry::kPart, Which::kAll);
    for (const int reversed : {0, 1}) {
      runs(from.followed[reversed], Entry::kPart, Which::kFollowed, reversed);
      runs(from.leading[reversed], Entry::kPart, Which::kLeading, reversed);
      runs(from.runs[reversed], Entry::kRun, Which::kAll, reversed);
      runs(from.consumers[reversed], Entry::kRun, Which::kConsumers, reversed);
      runs(from.independent[reversed], Entry::kRun, Which::kIndependent, reversed);
    }
    runs(from.beginnings, Entry::kRun, Which::kBeginnings, 1);
    const PackedShortRuns &shorts = from.short_runs;
    if (shorts.tokens == 0) return;
    runs(shorts.short_runs, Entry::kShortRun, Which::kAll);
    add(shorts.segments.data, shorts.segments.size, Entry::kShortSegment);
    for (const int reversed : {0, 1})
      add(shorts.entered_at[reversed], shorts.segments.size, Entry::kEnteredState, Which::kAll, reversed);
  }

  FewTables made_;
  int32_t cut_ = 0;
};

bool takes(const PackedTables &p) { return p.num_ranges == 1 && p.rows == 0 && p.sequences < kThreads; }

}  // namespace

int launch_few_tables(const PackedTables &p, const ZeroPadding &padding, Stream stream) {
  if (!takes(p)) return kTooManyTables;
  const FewTableList list(p, padding);
  few_tables_kernel<<<list.grid(), kThreads, 0, stream>>>(list.made());
  return cudaGetLastError();
}

int launch_few_tables(const PackedTables &p, const int32_t *offsets, Stream stream) {
  if (!takes(p)) return kTooManyTables;
  const FewTableList list(p, {});
  GivenOffsets given;
  std::copy_n(offsets, p.sequences + 1, given.at);
  given_few_tables_kernel<<<list.grid(), kThreads, 0, stream>>>(list.made(), given);
  return cudaGetLastError();
}

int load_few_tables() { return load_kernels(few_tables_kernel, given_few_tables_kernel); }

}  // namespace lasp::gpu
