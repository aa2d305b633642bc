// Fills the tables of a packing: what each thread of one block does. A test runs it on the host with a block of one
// thread.
#pragma once

#include "packed_tables.h"

namespace lasp::gpu {

// What the threads of a block share.
struct TableShared {
  PackedSegment head, tail;  // the first and the last segment, where there is one
  int64_t first, end;        // the segments that this block fills in
};

// Makes the tables of one cut. Every block finds all segments, and fills in those of some of its threads. `Block`
// has thread(), threads(), block(), blocks(), warp(), warps(), lane(), lanes(), sync(), highest_before(mine),
// sum_before(mine, &total) and shared().
template <class Block>
class TableBuilder {
 public:
  LASP_BOTH TableBuilder(const PackedTables &tables, int cut, Block &block)
      : tables_(tables), cut_(tables.cuts[cut]), leads_(cut == 0), block_(block) {}

  LASP_BOTH void build() {
    find_segments();
    block_.sync();
    const TableShared &shared = block_.shared();
    // Few segments: all threads on one after the other; else a warp on each.
    const bool together = shared.end - shared.first <= 2;
    const int64_t from = shared.first + (together ? 0 : block_.warp()), step = together ? 1 : block_.warps();
    const int64_t lane = together ? block_.thread() : block_.lane(),
                  lanes = together ? block_.threads() : block_.lanes();
    for (int64_t i = from; i < shared.end; i += step) fill_segment(i, lane, lanes);
    clear_rest();
  }

 private:
  LASP_BOTH int64_t offset(int64_t n) const {
    return tables_.wide ? static_cast<const int64_t *>(tables_.offsets)[n]
                        : static_cast<const int32_t *>(tables_.offsets)[n];
  }
  LASP_BOTH static int64_t within(int64_t x, int64_t low, int64_t high) {
    return x < low ? low : x > high ? high : x;
  }

  // Of sequence n. Whatever the offsets are, segments do not overlap and lie in this rank's tokens: each offset
  // counts as no less than all before it, by `highest`.
  struct Piece {
    int64_t from, to;
  };
  LASP_BOTH Piece piece_of(int64_t n, int64_t *highest) const {
    const int64_t a = offset(n), b = offset(n + 1), from = a > *highest ? a : *highest;
    *highest = b > from ? b : from;
    return {from, *highest};
  }
  LASP_BOTH bool is_here(const Piece &piece) const {
    return within(piece.from, tables_.begin, tables_.end) < within(piece.to, tables_.begin, tables_.end);
  }
  LASP_BOTH bool is_empty_here(const Piece &piece) const {
    if (piece.from != piece.to) return false;
    return (piece.from >= tables_.begin && piece.from < tables_.end) ||
           (tables_.last_rank && piece.from >= tables_.end);
  }
  LASP_BOTH PackedSegment segment_of(const Piece &piece, int64_t n) const {
    const int64_t from = within(piece.from, tables_.begin, tables_.end),
                  to = within(piece.to, tables_.begin, tables_.end);
    PackedSegment segment;
    segment.begin = from - tables_.begin, segment.length = to - from;
    segment.sequence = n;
    segment.starts = from == piece.from, segment.ends = to == piece.to;
    return segment;
  }
  // Whose thread's segments this block fills in.
  LASP_BOTH bool is_own(int64_t thread) const {
    return thread >= 0 && thread < block_.threads() &&
           whole_parts(thread * block_.blocks(), block_.threads()) == block_.block();
  }

  // A thread takes neighbouring sequences; what comes before them is the sum over lower threads.
  LASP_BOTH void find_segments() {
    const int64_t each = parts_of(tables_.sequences, block_.threads()), first = each * block_.thread();
    const int64_t end = first + each < tables_.sequences ? first + each : tables_.sequences;
    int64_t own_highest = INT64_MIN;
    for (int64_t n = first; n < end; ++n) own_highest = offset(n) > own_highest ? offset(n) : own_highest;
    const int64_t highest = block_.highest_before(own_highest);
    PackedTotals mine;
    int64_t high = highest;
    for (int64_t n = first; n < end; ++n) {
      const Piece piece = piece_of(n, &high);
      mine.empty += is_empty_here(piece);
      if (!is_here(piece)) continue;
      mine.segments += 1;
      mine.of_cut += count_cut(segment_of(piece, n).length, cut_.tokens);
    }
    PackedTotals before = block_.sum_before(mine, &total_);
    const bool own = is_own(block_.thread());
    TableShared &shared = block_.shared();
    if (own && !is_own(block_.thread() - 1)) shared.first = before.segments;
    high = highest;
    for (int64_t n = first; n < end; ++n) {
      const Piece piece = piece_of(n, &high);
      if (own && leads_ && is_empty_here(piece)) tables_.empty.data[before.empty++] = n;
      if (!is_here(piece)) continue;
      PackedSegment segment = segment_of(piece, n);
      segment.before = before.of_cut;
      before.of_cut += count_cut(segment.length, cut_.tokens);
      if (before.segments == 0) shared.head = segment;
      if (before.segments == total_.segments - 1) shared.tail = segment;
      if (own) cut_.scratch[before.segments] = segment;
      before.segments += 1;
    }
    if (own && !is_own(block_.thread() + 1)) shared.end = before.segments;
  }

  LASP_BOTH void fill_segment(int64_t index, int64_t lane, int64_t lanes) {
    const PackedCut &c = cut_;
    const PackedSegment segment = c.scratch[index];
    const CutCounts own = count_cut(segment.length, c.tokens), before = segment.before;
    const int64_t count = total_.segments;
    const bool first = index == 0, last = index == count - 1;
    if (lane == 0) c.segments.data[index] = make_segment(segment, index, count, c.tokens);
    const PackedSegment &head = block_.shared().head;
    const CutCounts of_head = count_cut(head.length, c.tokens);
    const int64_t skipped =
        own.states - own.followed[1];  // parts of the first run, after which none comes, reversed
    for (int64_t part = lane; part < own.states; part += lanes) {
      const Run run = make_state_run(segment, index, c.tokens, part);
      c.state_runs.data[before.states + part] = run;
      const bool is_followed = part < own.followed[0];
      if (is_followed) c.followed[0].data[before.followed[0] + part] = run;
      if (is_followed || last) c.leading[0].data[before.followed[0] + part] = run;
      const bool is_followed_back = part >= skipped;
      if (is_followed_back) c.followed[1].data[before.followed[1] + part - skipped] = run;
      if (first)
        c.leading[1].data[part] = run;
      else if (is_followed_back)
        c.leading[1].data[before.followed[1] - of_head.followed[1] + of_head.states + part - skipped] = run;
    }
    const bool head_consumes = PackedEdges(head, 0, count, 0).consumes;
    for (int reversed = 0; reversed < 2; ++reversed) {
      const bool consumes = PackedEdges(segment, index, count, reversed).consumes;
      const int64_t shift = reversed == 0 && head_consumes ? of_head.runs : 0;
      for (int64_t n = lane; n < own.runs; n += lanes) {
        const Run run = make_run(segment, index, count, c.tokens, n, reversed);
        c.runs[reversed].data[before.runs + n] = run;
        if (consumes)
          c.consumers[reversed].data[n] = run;
        else
          c.independent[reversed].data[before.runs + n - shift] = run;
        if (reversed == 1 && n == 0 && segment.starts) c.beginnings.data[index - !head.starts] = run;
        if (reversed == 0 && c.short_runs.tokens > 0) fill_short_runs(c, run, before.runs + n);
      }
    }
  }

  LASP_BOTH static void fill_short_runs(const PackedCut &c, const Run &whole, int64_t at) {
    const PackedShortRuns &s = c.short_runs;
    const int64_t in_window = at - whole_parts(at, s.runs) * s.runs, parts = parts_of(whole.length, s.tokens);
    Segment segment;
    segment.first_run = in_window * s.parts;
    segment.num_runs = parts;
    s.segments.data[at] = segment;
    s.entered_at[0][at] = whole.state;
    s.entered_at[1][at] = whole.state + parts_of(whole.length, c.tokens.state) - 1;
    for (int64_t part = 0; part < s.parts; ++part) {
      Run run;
      if (part < parts) {
        run.segment = in_window;
        run.begin = whole.begin + part * s.tokens;
        const int64_t left = whole.length - part * s.tokens;
        run.length = static_cast<int32_t>(left < s.tokens ? left : s.tokens);
        run.state = in_window * s.parts + part;
      }
      s.short_runs.data[at * s.parts + part] = run;
    }
  }

  // By all threads of all blocks.
  template <class T>
  LASP_BOTH void clear(const Table<T> &table, int64_t from) {
    const int64_t step = block_.threads() * block_.blocks();
    for (int64_t i = from + block_.block() * block_.threads() + block_.thread(); i < table.size; i += step)
      table.data[i] = T();
  }

  LASP_BOTH void clear_rest() {
    const PackedCut &c = cut_;
    const CutCounts &used = total_.of_cut;
    const int64_t count = total_.segments;
    int64_t extra[2] = {0, 0}, consumed[2] = {0, 0}, starts = 0, padding = 0;
    if (count > 0) {
      const PackedSegment &head = block_.shared().head, &tail = block_.shared().tail;
      const CutCounts of_head = count_cut(head.length, c.tokens), of_tail = count_cut(tail.length, c.tokens);
      extra[0] = of_tail.states - of_tail.followed[0], extra[1] = of_head.states - of_head.followed[1];
      if (PackedEdges(head, 0, count, 0).consumes) consumed[0] = of_head.runs;
      if (PackedEdges(tail, count - 1, count, 1).consumes) consumed[1] = of_tail.runs;
      starts = count - !head.starts;
      padding = tail.begin + tail.length;
    }
    if (block_.block() == 0 && block_.thread() == 0 && count == 0 && c.segments.size > 0)
      c.segments.data[0] = segment_of_none();
    if (leads_ && block_.block() == 0 && block_.thread() == 0) {
      tables_.live[kLiveSegments] = count > 0 ? count : 1;
      tables_.live[kLiveEmpty] = total_.empty;
      tables_.live[kLivePadding] = padding;
    }
    if (leads_) clear(tables_.empty, total_.empty);
    clear(c.segments, count > 0 ? count : 1);
    clear(c.state_runs, used.states);
    for (int reversed = 0; reversed < 2; ++reversed) {
      clear(c.followed[reversed], used.followed[reversed]);
      clear(c.leading[reversed], used.followed[reversed] + extra[reversed]);
      clear(c.runs[reversed], used.runs);
      clear(c.consumers[reversed], consumed[reversed]);
      clear(c.independent[reversed], used.runs - consumed[reversed]);
    }
    clear(c.beginnings, starts);
    if (c.short_runs.tokens == 0) return;
    clear(c.short_runs.segments, used.runs);
    clear(c.short_runs.short_runs, used.runs * c.short_runs.parts);
    for (int64_t *const entered : c.short_runs.entered_at)
      clear<int64_t>({entered, c.short_runs.segments.size}, used.runs);
  }

  const PackedTables &tables_;
  const PackedCut &cut_;
  const bool leads_;  // makes what all cuts share
  Block &block_;
  PackedTotals total_;
};

}  // namespace lasp::gpu
