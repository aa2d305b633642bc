// The tables of runs of a packing (launch.h: Run, Segment), made on the device from its offsets, so that a captured
// graph replays with others. What the entries hold is computed here, for host and device alike; which thread writes
// which is packed_tables.cu's.
//
// Every table has room for any packing of the plan. Entries that a packing does not use are empty (length 0).
#pragma once

#include <algorithm>
#include <cstddef>

#include "launch.h"

#ifdef __CUDACC__
#define LASP_BOTH __host__ __device__
// Short code: most of the table kernel runs once in a thread.
#define LASP_ROLLED _Pragma("unroll 1")
#else
#define LASP_BOTH
#define LASP_ROLLED
#endif

namespace lasp::gpu {

// A table: entries that a launch is given, and where they are.
template <class T>
struct Table {
  T *data = nullptr;
  int64_t size = 0;
};

// How the segments are cut, as cuda/backend/tables.h has it in a Partition: into runs, and these into parts by
// which states are found.
struct CutTokens {
  int64_t run = 0, state = 0;
};

// A packed rank has at most so many tokens: counts are of 32 bits, and divisions, which a GPU does in a few
// instructions then. (Less what offsets of ranges need beside tokens.)
inline constexpr int64_t kMostPackedTokens = INT32_MAX - 64;

// What one segment adds to the tables of a cut.
struct CutCounts {
  int32_t states = 0, runs = 0, checkpoints = 0;
  int32_t followed[2] = {0, 0};  // parts after whose run another one comes, forward and reversed

  LASP_BOTH void operator+=(const CutCounts &other) {
    states += other.states, runs += other.runs, checkpoints += other.checkpoints;
    followed[0] += other.followed[0], followed[1] += other.followed[1];
  }
};

// Rounded down, and up.
LASP_BOTH inline int32_t whole_parts(int64_t tokens, int64_t part) {
  return static_cast<int32_t>(static_cast<uint32_t>(tokens) / static_cast<uint32_t>(part));
}
LASP_BOTH inline int32_t parts_of(int64_t tokens, int64_t part) { return whole_parts(tokens + part - 1, part); }

LASP_BOTH inline CutCounts count_cut(int64_t tokens, const CutTokens &cut) {
  CutCounts count;
  count.states = parts_of(tokens, cut.state);
  count.runs = parts_of(tokens, cut.run);
  count.checkpoints = parts_of(tokens, kFusedCheckpoint);
  if (count.runs > 1) {  // then a run is a whole number of parts
    const int32_t parts = whole_parts(cut.run, cut.state);
    count.followed[0] = (count.runs - 1) * parts;
    count.followed[1] = count.states - parts;
  }
  return count;
}

// Room for any packing of `tokens` tokens on this rank into at most `sequences` segments.
LASP_BOTH inline CutCounts most_of_cut(int64_t tokens, int64_t sequences, const CutTokens &cut) {
  const int64_t segments = sequences < tokens ? sequences : tokens;
  const auto most = [&](int64_t part) {
    return segments == 0 ? 0 : static_cast<int32_t>(segments + (tokens - segments) / part);
  };
  CutCounts count;
  count.states = most(cut.state);
  count.runs = most(cut.run);
  count.checkpoints = most(kFusedCheckpoint);
  if (tokens > cut.run) {  // of one sequence most: before a further run, or part, there is a whole one
    const int64_t parts = cut.run / cut.state;
    count.followed[0] = static_cast<int32_t>((tokens - 1) / cut.run * parts);
    count.followed[1] = static_cast<int32_t>((tokens - 1) / cut.state + 1 - parts);
  }
  return count;
}

inline constexpr int kMostCuts = 2, kMostRanges = 16;

// Tokens [begin, end) of the whole buffer that follow each other in this rank's tensors, from token `local` on.
struct PackedRange {
  int64_t begin = 0, end = 0;
  int32_t local = 0;
  bool last = false;  // of all ranks' ranges: empty sequences behind all tokens are its own
  // Where each sequence is cut by itself (PackedTables::rows): which of its two parts on this rank the range has,
  // and whether these begin and end sequences. Then tokens are in no order of ranges, and `begin` and `end` only
  // say how many there are.
  int8_t part = kBothParts;
  bool starts = false, ends = false;
  static constexpr int8_t kBothParts = 0, kFirstPart = 1, kSecondPart = 2;
};

// A sequence's tokens on this rank.
struct PackedSegment {
  int64_t begin = 0, length = 0;  // local tokens
  int64_t sequence = 0;
  bool starts = false, ends = false;  // holds the sequence's first token, its last one
  CutCounts before;                   // of the segments before it
  // Where it stands on its path (Run::path), a range's or its own: `first` of it, `last` of it.
  bool first = false, last = false;
  int32_t path = 0;
  int32_t starts_before = 0;  // sequences that start in segments before it, where each is cut by itself
};

// Runs of passes cut again around which the gradient of a decay is found: of a run of passes `parts` entries,
// `runs` runs at a time in a window, in which segments and states are counted (cuda/cut/runs.h, ShortRunTables).
struct PackedShortRuns {
  int64_t tokens = 0;  // of a short run; 0: none are wanted
  int64_t parts = 0, runs = 0;
  Table<Run> short_runs;
  Table<Segment> segments;
  int64_t *entered_at[2] = {nullptr, nullptr};
};

struct PackedCut {
  CutTokens tokens;
  PackedSegment *scratch = nullptr;  // as many as `segments`
  Table<Segment> segments;
  Table<Run> state_runs, followed[2], leading[2];
  Table<Run> runs[2], consumers[2], independent[2], beginnings;
  PackedShortRuns short_runs;
};

struct PackedTables {
  const void *offsets = nullptr;  // device memory, [sequences + 1]; null where they are given to the launch
  bool wide = true;               // int64, else int32
  int64_t sequences = 0;
  PackedRange ranges[kMostRanges];  // this rank's
  int32_t num_ranges = 0;
  // Each sequence is cut by itself: so many paths has a range, the most sequences; 0: it is not so. A sequence has
  // a ranks-th part of its tokens on each rank, one sequence after the other in the rank's tensors, of `tokens`
  // tokens. There is a segment for each path then, of no tokens where it has no sequence.
  int32_t ranks = 1;
  int64_t rows = 0, tokens = 0;
  PackedCut cuts[kMostCuts];
  int32_t num_cuts = 0;
  Table<int64_t> empty;  // the empty sequences that this rank owns
  // [kLiveCount]: the segments, at least one for each range, as the scan takes them; the empty sequences; by cut:
  // its parts after whose run another one comes; by range: its first local token of padding. Where each sequence is
  // cut by itself there is one padding.
  int64_t *live = nullptr;
};
inline constexpr int kLiveSegments = 0, kLiveEmpty = 1, kLiveFollowed = 2, kLivePadding = kLiveFollowed + kMostCuts,
                     kLiveCount = kLivePadding + kMostRanges;

// Zero into the tokens of padding of tensors [1, T, heads, dim].
struct ZeroPadding {
  static constexpr int kMost = 5;
  const int64_t *live = nullptr;   // PackedTables::live
  int64_t ends[kMostRanges] = {};  // local tokens, by range
  int32_t num_ranges = 0;
  struct Part {
    void *data = nullptr;
    int64_t token = 0, head = 0;            // strides in elements
    int32_t heads = 0, dim = 0, bytes = 0;  // of an element: 2 or 4
  } parts[kMost];
  int32_t count = 0;
};

// Of offsets in device memory, PackedTables::offsets. And the padding that follows from them is cleared.
int launch_packed_tables(const PackedTables &, const ZeroPadding &, Stream stream);

// Of int32 offsets in host memory as they are when this is called: they travel as kernel parameters, so that a
// captured graph has them. `place` is device memory, [sequences + 1], for those that are too many for one launch.
int launch_packed_tables(const PackedTables &, const int32_t *offsets, int32_t *place, Stream stream);

// Host memory for tables that lie in [device, device + bytes), in the same order.
struct TableImage {
  void *host = nullptr;
  void *device = nullptr;
  size_t bytes = 0;
};

// The same, but the host makes the tables, in `image`, and they travel as parameters: a kernel that only copies is
// done in a fraction of the time. Returns kTooManyTables, with nothing launched, where they do not fit, as more
// than kMostCarriedRuns different runs do.
inline constexpr int kTooManyTables = -1, kMostCarriedRuns = 288;
int launch_carried_tables(const PackedTables &, const int32_t *offsets, const TableImage &image, Stream stream);

// Offsets of 32 bits for a rank: its ranges one after the other, and between two of them, before the first and
// behind the last one number for all other offsets.
inline int64_t given_begin(const PackedRange *ranges, int32_t n) { return ranges[n].local + 2 * n; }
inline int32_t given_offset(int64_t offset, const PackedRange *ranges, int32_t num_ranges) {
  int32_t n = 0;
  while (n + 1 < num_ranges && offset >= ranges[n + 1].begin) ++n;
  if (num_ranges == 0) return -1;
  const int64_t tokens = ranges[n].end - ranges[n].begin;
  return static_cast<int32_t>(given_begin(ranges, n) +
                              std::clamp<int64_t>(offset - ranges[n].begin, -1, tokens + 1));
}
// The range that these are offsets of.
inline PackedRange given_range(const PackedRange *ranges, int32_t n) {
  PackedRange range = ranges[n];
  range.begin = given_begin(ranges, n);
  range.end = range.begin + ranges[n].end - ranges[n].begin;
  return range;
}

int launch_zero_padding(const ZeroPadding &, Stream stream);

// The same as launch_packed_tables, for few sequences in one range: each block of a small kernel makes a table of
// its own, in a third of the time. Both return kTooManyTables, with nothing launched, where it does not take them.
int launch_few_tables(const PackedTables &, const ZeroPadding &, Stream stream);
int launch_few_tables(const PackedTables &, const int32_t *offsets, Stream stream);

int load_packed_tables();
int load_carried_tables();
int load_few_tables();

// ---- One entry each ----

LASP_BOTH inline int64_t within(int64_t x, int64_t low, int64_t high) {
  return x < low ? low : x > high ? high : x;
}

// Of a sequence, tokens [from, to) of the whole buffer.
struct Piece {
  int64_t from, to;
};
LASP_BOTH inline bool is_in(const PackedRange &range, const Piece &piece) {
  return within(piece.from, range.begin, range.end) < within(piece.to, range.begin, range.end);
}
LASP_BOTH inline bool is_empty_in(const PackedRange &range, const Piece &piece) {
  if (piece.from != piece.to) return false;
  return (piece.from >= range.begin && piece.from < range.end) || (range.last && piece.from >= range.end);
}
LASP_BOTH inline PackedSegment segment_of(const PackedRange &range, const Piece &piece, int64_t sequence) {
  const int64_t from = within(piece.from, range.begin, range.end), to = within(piece.to, range.begin, range.end);
  PackedSegment segment;
  segment.begin = range.local + from - range.begin, segment.length = to - from;
  segment.sequence = sequence;
  segment.starts = from == piece.from, segment.ends = to == piece.to;
  return segment;
}

struct PackedTotals {
  int32_t segments = 0, empty = 0;
  CutCounts of_cut;
  LASP_BOTH void operator+=(const PackedTotals &other) {
    segments += other.segments, empty += other.empty;
    of_cut += other.of_cut;
  }
};

// Which segments states leave by and enter, each way: as TokenPartition's RowPath.
struct PackedEdges {
  bool produces, consumes, resets;
  LASP_BOTH PackedEdges(const PackedSegment &segment, int reversed) {
    produces = reversed ? segment.first : segment.last;
    consumes = reversed ? segment.last && !segment.ends : segment.first && !segment.starts;
    resets = reversed ? segment.ends : segment.starts;
  }
};

// Where no sequence has a token of a path: it forgets what enters it.
LASP_BOTH inline Segment segment_of_none(int32_t path) {
  Segment to;
  to.path = path;
  for (int reversed = 0; reversed < 2; ++reversed) to.produces[reversed] = to.resets[reversed] = 1;
  return to;
}

LASP_BOTH inline Segment make_segment(const PackedSegment &from, const CutCounts &own) {
  if (from.length == 0) return segment_of_none(from.path);
  Segment to;
  to.path = from.path;
  to.sequence = from.sequence;
  to.first_run = from.before.states;
  to.num_runs = own.states;
  to.begins[0] = from.starts, to.begins[1] = from.ends;
  for (int reversed = 0; reversed < 2; ++reversed) {
    const PackedEdges edges(from, reversed);
    to.produces[reversed] = edges.produces, to.consumes[reversed] = edges.consumes;
    to.resets[reversed] = edges.resets;
  }
  return to;
}

// Tokens [at, at + most) of a segment, as far as they are there, a part of runs of `whole` tokens.
LASP_BOTH inline Run make_part(const PackedSegment &from, int64_t index, int64_t at, int64_t most, int64_t whole) {
  Run to;
  to.begin = from.begin + at;
  to.segment = index;
  to.path = from.path;
  to.length = static_cast<int32_t>(from.length - at < most ? from.length - at : most);
  const int64_t within = at - whole_parts(at, whole) * whole, left = from.length - at - to.length,
                room = whole - within - to.length;
  to.before = static_cast<int32_t>(within);
  to.after = static_cast<int32_t>(room < left ? room : left);
  if (at == 0 && from.starts) to.starts = from.sequence;
  if (at + to.length == from.length && from.ends) to.ends = from.sequence;
  return to;
}

LASP_BOTH inline Run make_state_run(const PackedSegment &from, int64_t index, const CutTokens &tokens,
                                    int64_t part) {
  Run to = make_part(from, index, part * tokens.state, tokens.state, tokens.run);
  to.state = from.before.states + part;
  return to;
}

// Run `n` of a segment, as passes of one direction see it.
LASP_BOTH inline Run make_run(const PackedSegment &from, int64_t index, const CutTokens &tokens, int64_t n,
                              int reversed) {
  Run to = make_part(from, index, n * tokens.run, tokens.run, tokens.run);
  const int64_t parts = whole_parts(tokens.run, tokens.state), within = parts_of(to.length, tokens.state);
  to.state = from.before.states + n * parts + (reversed ? within - 1 : 0);
  to.checkpoint = static_cast<int32_t>(from.before.checkpoints + n * (tokens.run / kFusedCheckpoint));
  to.entered = PackedEdges(from, reversed).consumes;
  return to;
}

// Of run `at` of a cut, `whole`: the segment of its short runs, and short run `part`, empty behind the last one.
LASP_BOTH inline Segment make_short_segment(const PackedShortRuns &s, const Run &whole, int64_t at) {
  Segment to;
  to.first_run = (at - whole_parts(at, s.runs) * s.runs) * s.parts;
  to.num_runs = parts_of(whole.length, s.tokens);
  return to;
}
LASP_BOTH inline Run make_short_run(const PackedShortRuns &s, const Run &whole, int64_t at, int64_t part) {
  Run to;
  const int64_t left = whole.length - part * s.tokens, in_window = at - whole_parts(at, s.runs) * s.runs;
  if (left <= 0) return to;
  to.segment = in_window;
  to.begin = whole.begin + part * s.tokens;
  to.length = static_cast<int32_t>(left < s.tokens ? left : s.tokens);
  to.state = in_window * s.parts + part;
  return to;
}
// The states that enter the short runs of `whole`, seen forward, from either end.
LASP_BOTH inline int64_t entered_state(const Run &whole, const CutTokens &tokens, int reversed) {
  return whole.state + (reversed ? parts_of(whole.length, tokens.state) - 1 : 0);
}

}  // namespace lasp::gpu
