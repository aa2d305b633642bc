// Fills the tables of a packing: what each thread of one block does. The host runs it with a block of one thread
// (one_thread.h).
#pragma once

#include <cstddef>
#include <type_traits>

#include "packed_tables.h"

namespace lasp::gpu {

// A table as words: the entries that a packing uses, and behind them those that it does not.
struct TableWords {
  int64_t *words;
  int64_t used, unused;
  bool runs;  // empty entries are Run(), which says -1 in two words; else all of zeros
};
// Word i of empty entries.
LASP_BOTH inline int64_t empty_word(bool runs, uint32_t i) {
  constexpr uint32_t kStarts = offsetof(Run, starts) / 8, kEnds = offsetof(Run, ends) / 8;
  const uint32_t word = i % static_cast<uint32_t>(sizeof(Run) / sizeof(int64_t));
  return runs && (word == kStarts || word == kEnds) ? -1 : 0;
}

// What ranges have in the tables: of their segments, and what the first and last ones add besides.
struct FilledTables {
  PackedTotals totals;
  int64_t extra[2] = {0, 0}, consumed[2] = {0, 0}, beginnings = 0;
  uint32_t without = 0;  // ranges in which no sequence has a token
};

// What the threads of a block share, of one range.
struct TableShared {
  PackedSegment head, tail;  // the first and the last segment, where there is one and a range is a path
  int64_t used;              // tokens of sequences, where each is cut by itself
  PackedTotals total;
  FilledTables filled;  // by the ranges before
  int64_t first, end;   // the segments that this block fills in
  static constexpr int kMostUses = 20;
  TableWords uses[kMostUses];
  int num_uses;
};

// Makes the tables of one cut. Every block finds all segments, and fills in those of some of its threads. `Block`
// has thread(), threads(), block(), blocks(), warp(), warps(), lane(), lanes(), sync(), highest_before(mine),
// sum_before(mine), which leaves the sum of all in shared().total, shared(), and clears(): whether entries that are
// not used are made empty; shared().uses says which those are.
template <class Block>
class TableBuilder {
 public:
  // `offsets` stand where tables.offsets may be: tables.wide says of which type.
  LASP_BOTH TableBuilder(const PackedTables &tables, const void *offsets, int cut, Block &block)
      : tables_(tables), offsets_(offsets), cut_(tables.cuts[cut]), leads_(cut == 0), block_(block) {}

  LASP_BOTH void build() {
    // Meanwhile the blocks that have no sequences clear, if there are any.
    const int64_t busy = num_busy(), first = busy < block_.blocks() ? busy : 0;
    if (block_.thread() == 0) block_.shared().filled = {}, block_.shared().used = 0;
    LASP_ROLLED for (int32_t range = 0; range < tables_.num_ranges; ++range) {
      find_segments(range);
      block_.sync();
      const TableShared &shared = block_.shared();
      // Few segments: all threads on one after the other; else a warp on each.
      const bool together = shared.end - shared.first <= 2;
      const int64_t from = shared.first + (together ? 0 : block_.warp()), step = together ? 1 : block_.warps();
      const int64_t lane = together ? block_.thread() : block_.lane(),
                    lanes = together ? block_.threads() : block_.lanes();
      LASP_ROLLED for (int64_t i = from; i < shared.end; i += step) fill_segment(i, lane, lanes);
      block_.sync();
      if (block_.thread() == 0) end_range(range, block_.block() == first);
      block_.sync();
    }
    if (block_.block() < first) return;
    if (block_.thread() == 0) find_uses(block_.block() == first);
    block_.sync();
    if (block_.clears()) clear_unused(block_.block() - first, block_.blocks() - first);
  }

 private:
  LASP_BOTH int64_t offset(int64_t n) const {
    return tables_.wide ? static_cast<const int64_t *>(offsets_)[n] : static_cast<const int32_t *>(offsets_)[n];
  }
  // Of sequence n. Whatever the offsets are, segments do not overlap and lie in this rank's tokens: each offset
  // counts as no less than all before it, by `highest`.
  LASP_BOTH Piece piece_of(int64_t n, int64_t *highest) const {
    const int64_t a = offset(n), b = offset(n + 1), from = a > *highest ? a : *highest;
    *highest = b > from ? b : from;
    return {from, *highest};
  }
  // Of sequence n where each is cut by itself, and its local tokens; of none where it is not there.
  LASP_BOTH bool each() const { return tables_.rows > 0; }
  LASP_BOTH int64_t local_of(int64_t global) const { return within(global / tables_.ranks, 0, tables_.tokens); }
  LASP_BOTH PackedSegment segment_of_each(const PackedRange &range, int32_t index, int64_t n,
                                          int64_t *highest) const {
    PackedSegment segment;
    segment.sequence = n;
    segment.path = static_cast<int32_t>(index * tables_.rows + n);
    segment.first = segment.last = true;
    if (n >= tables_.sequences) return segment;
    const Piece piece = piece_of(n, highest);
    const int64_t from = local_of(piece.from), length = local_of(piece.to) - from, half = length / 2;
    const bool second = range.part == PackedRange::kSecondPart;
    segment.begin = from + (second ? half : 0);
    segment.length = range.part == PackedRange::kFirstPart ? half : second ? length - half : length;
    segment.starts = range.starts, segment.ends = range.ends;
    return segment;
  }
  // Whose thread's segments this block fills in.
  LASP_BOTH bool is_own(int64_t thread) const {
    return thread >= 0 && thread < block_.threads() &&
           whole_parts(thread * block_.blocks(), block_.threads()) == block_.block();
  }

  // How many blocks have sequences to fill in.
  LASP_BOTH int64_t num_busy() const {
    const int64_t of_thread = parts_of(count(), block_.threads());
    return of_thread == 0 ? 0 : parts_of(parts_of(count(), of_thread) * block_.blocks(), block_.threads());
  }
  // What threads go through.
  LASP_BOTH int64_t count() const { return each() ? tables_.rows : tables_.sequences; }

  // A thread takes neighbouring sequences; what comes before them is the sum over lower threads.
  LASP_BOTH void find_segments(int32_t index) {
    const PackedRange &range = tables_.ranges[index];
    const int64_t of_thread = parts_of(count(), block_.threads()), first = of_thread * block_.thread();
    const int64_t end = first + of_thread < count() ? first + of_thread : count();
    int64_t own_highest = INT64_MIN;
    LASP_ROLLED for (int64_t n = first; n < end && n < tables_.sequences; ++n) own_highest =
        offset(n) > own_highest ? offset(n) : own_highest;
    const int64_t highest = block_.highest_before(own_highest);
    const bool own = is_own(block_.thread());
    TableShared &shared = block_.shared();
    // First the thread counts its own, then with what comes before them it writes them.
    PackedTotals at;
    LASP_ROLLED for (int write = 0; write < 2; ++write) {
      int64_t high = highest;
      if (write) {
        at = block_.sum_before(at);
        at += shared.filled.totals;
        if (own && !is_own(block_.thread() - 1)) shared.first = at.segments;
      }
      if (each()) {
        find_each(range, index, first, end, high, write && own, at);
        continue;
      }
      LASP_ROLLED for (int64_t n = first; n < end; ++n) {
        const Piece piece = piece_of(n, &high);
        if (is_empty_in(range, piece)) {
          if (write && own && leads_) tables_.empty.data[at.empty] = n;
          at.empty += 1;
        }
        if (!is_in(range, piece)) continue;
        PackedSegment segment = segment_of(range, piece, n);
        segment.before = at.of_cut;
        segment.path = index;
        if (write) {
          const int64_t in_range = at.segments - shared.filled.totals.segments;
          segment.first = in_range == 0, segment.last = in_range == shared.total.segments - 1;
        }
        if (segment.first) shared.head = segment;
        if (segment.last) shared.tail = segment;
        if (write && own) cut_.scratch[at.segments] = segment;
        at.of_cut += count_cut(segment.length, cut_.tokens);
        at.segments += 1;
      }
    }
    if (own && !is_own(block_.thread() + 1)) shared.end = at.segments;
  }

  // The thread's sequences [first, end), counted and with `write` written.
  LASP_BOTH void find_each(const PackedRange &range, int32_t index, int64_t first, int64_t end, int64_t highest,
                           bool write, PackedTotals &at) {
    LASP_ROLLED for (int64_t n = first; n < end; ++n) {
      PackedSegment segment = segment_of_each(range, index, n, &highest);
      if (n + 1 == tables_.sequences) block_.shared().used = local_of(highest);
      segment.before = at.of_cut;
      segment.starts_before = static_cast<int32_t>(n - at.empty);
      if (write) cut_.scratch[at.segments] = segment;
      if (segment.length == 0 && range.starts && n < tables_.sequences) {
        if (write && leads_) tables_.empty.data[at.empty] = n;
        at.empty += 1;
      }
      at.of_cut += count_cut(segment.length, cut_.tokens);
      at.segments += 1;
    }
  }

  LASP_BOTH static void put(const Table<Run> &table, bool there, int64_t at, const Run &run) {
    if (there) table.data[at] = run;
  }

  LASP_BOTH void fill_segment(int64_t index, int64_t lane, int64_t lanes) {
    const PackedCut &c = cut_;
    const PackedSegment segment = c.scratch[index];
    const CutCounts own = count_cut(segment.length, c.tokens), before = segment.before;
    if (lane == 0) c.segments.data[index] = make_segment(segment, own);
    const PackedSegment &head = block_.shared().head;
    const FilledTables &filled = block_.shared().filled;
    const CutCounts of_head = count_cut(each() ? 0 : head.length, c.tokens);
    const int64_t skipped =
        own.states - own.followed[1];  // parts of the first run, after which none comes, reversed
    // With the first segment's first run, reversed, all its parts lead, and go before the others.
    // Where each segment is a path, all parts of all lead.
    const int64_t led = each() ? before.states
                               : filled.extra[1] + before.followed[1] +
                                     (segment.first ? 0 : of_head.states - of_head.followed[1] - skipped);
    const int64_t leads = each() ? before.states : filled.extra[0] + before.followed[0];
    LASP_ROLLED for (int64_t part = lane; part < own.states; part += lanes) {
      const Run run = make_state_run(segment, index, c.tokens, part);
      const bool followed = part < own.followed[0], followed_back = part >= skipped;
      put(c.state_runs, true, before.states + part, run);
      put(c.followed[0], followed, before.followed[0] + part, run);
      put(c.leading[0], followed || segment.last, leads + part, run);
      put(c.followed[1], followed_back, before.followed[1] + part - skipped, run);
      put(c.leading[1], segment.first || followed_back, led + part, run);
    }
    LASP_ROLLED for (int reversed = 0; reversed < 2; ++reversed) {
      const bool consumes = PackedEdges(segment, reversed).consumes;
      const int64_t consumed = filled.consumed[reversed],
                    shift =
                        consumed + (!each() && reversed == 0 && PackedEdges(head, 0).consumes ? of_head.runs : 0),
                    consumer = consumed + (each() ? before.runs - filled.totals.of_cut.runs : 0);
      const int64_t beginning =
          each() ? segment.starts_before : filled.beginnings + index - filled.totals.segments - !head.starts;
      LASP_ROLLED for (int64_t n = lane; n < own.runs; n += lanes) {
        const Run run = make_run(segment, index, c.tokens, n, reversed);
        put(c.runs[reversed], true, before.runs + n, run);
        put(c.consumers[reversed], consumes, consumer + n, run);
        put(c.independent[reversed], !consumes, before.runs + n - shift, run);
        put(c.beginnings, reversed == 1 && n == 0 && segment.starts, beginning, run);
        if (reversed == 0 && c.short_runs.tokens > 0) fill_short_runs(c, run, before.runs + n);
      }
    }
  }

  LASP_BOTH static void fill_short_runs(const PackedCut &c, const Run &whole, int64_t at) {
    const PackedShortRuns &s = c.short_runs;
    s.segments.data[at] = make_short_segment(s, whole, at);
    for (const int reversed : {0, 1}) s.entered_at[reversed][at] = entered_state(whole, c.tokens, reversed);
    LASP_ROLLED for (int64_t part = 0; part < s.parts; ++part) s.short_runs.data[at * s.parts + part] =
        make_short_run(s, whole, at, part);
  }

  // This packing uses so many entries of a table.
  template <class T>
  LASP_BOTH void use(const Table<T> &table, int64_t used) {
    constexpr int64_t kWords = sizeof(T) / sizeof(int64_t);
    static_assert(sizeof(T) == kWords * sizeof(int64_t));
    if (table.size > 0)
      block_.shared().uses[block_.shared().num_uses++] = {reinterpret_cast<int64_t *>(table.data), used * kWords,
                                                          (table.size - used) * kWords, std::is_same_v<T, Run>};
  }

  // By one thread of each block, once the range's segments are there; one of them says where its padding begins.
  LASP_BOTH void end_range(int32_t index, bool is_first) {
    TableShared &shared = block_.shared();
    FilledTables &filled = shared.filled;
    if (each()) return end_range_of_each(index, is_first);
    const PackedSegment &head = shared.head, &tail = shared.tail;
    const bool any = shared.total.segments > 0;
    if (any) {
      const CutCounts of_head = count_cut(head.length, cut_.tokens), of_tail = count_cut(tail.length, cut_.tokens);
      filled.extra[0] += of_tail.states - of_tail.followed[0];
      filled.extra[1] += of_head.states - of_head.followed[1];
      if (PackedEdges(head, 0).consumes) filled.consumed[0] += of_head.runs;
      if (PackedEdges(tail, 1).consumes) filled.consumed[1] += of_tail.runs;
      filled.beginnings += shared.total.segments - !head.starts;
    } else {
      filled.without |= 1u << index;
    }
    filled.totals += shared.total;
    if (leads_ && is_first)
      tables_.live[kLivePadding + index] = any ? tail.begin + tail.length : tables_.ranges[index].local;
  }

  LASP_BOTH void end_range_of_each(int32_t index, bool is_first) {
    TableShared &shared = block_.shared();
    FilledTables &filled = shared.filled;
    const PackedRange &range = tables_.ranges[index];
    const CutCounts &own = shared.total.of_cut;
    LASP_ROLLED for (int reversed = 0; reversed < 2; ++reversed) {
      filled.extra[reversed] += own.states - own.followed[reversed];
      if (!(reversed ? range.ends : range.starts)) filled.consumed[reversed] += own.runs;
    }
    if (range.starts) filled.beginnings += tables_.sequences - shared.total.empty;
    filled.totals += shared.total;
    if (leads_ && is_first) tables_.live[kLivePadding] = shared.used;
  }

  // By one thread of each block that clears; the first of them says how much there is.
  LASP_BOTH void find_uses(bool is_first) {
    const PackedCut &c = cut_;
    TableShared &shared = block_.shared();
    shared.num_uses = 0;
    const FilledTables &filled = shared.filled;
    const CutCounts &used = filled.totals.of_cut;
    int64_t count = filled.totals.segments;
    LASP_ROLLED for (int32_t range = 0; c.segments.size > 0 && range < tables_.num_ranges; ++range) {
      if ((filled.without >> range & 1) == 0) continue;
      if (is_first) c.segments.data[count] = segment_of_none(range);
      ++count;
    }
    if (is_first) tables_.live[kLiveFollowed + (&cut_ - tables_.cuts)] = used.followed[0];
    if (leads_ && is_first) {
      tables_.live[kLiveSegments] = count > 0 ? count : 1;
      tables_.live[kLiveEmpty] = filled.totals.empty;
    }
    if (leads_) use(tables_.empty, filled.totals.empty);
    use(c.segments, count);
    use(c.state_runs, used.states);
    LASP_ROLLED for (int reversed = 0; reversed < 2; ++reversed) {
      use(c.followed[reversed], used.followed[reversed]);
      use(c.leading[reversed], used.followed[reversed] + filled.extra[reversed]);
      use(c.runs[reversed], used.runs);
      use(c.consumers[reversed], filled.consumed[reversed]);
      use(c.independent[reversed], used.runs - filled.consumed[reversed]);
    }
    use(c.beginnings, filled.beginnings);
    if (c.short_runs.tokens == 0) return;
    use(c.short_runs.segments, used.runs);
    use(c.short_runs.short_runs, used.runs * c.short_runs.parts);
    use(Table<int64_t>{c.short_runs.entered_at[0], c.short_runs.segments.size}, used.runs);
    use(Table<int64_t>{c.short_runs.entered_at[1], c.short_runs.segments.size}, used.runs);
  }

  // By all threads of so many blocks.
  LASP_BOTH void clear_unused(int64_t block, int64_t blocks) {
    const TableShared &shared = block_.shared();
    const int64_t step = block_.threads() * blocks;
    LASP_ROLLED for (int t = 0; t < shared.num_uses; ++t) {
      const TableWords &table = shared.uses[t];
      int64_t *const words = table.words + table.used;
      const int64_t count = table.unused;
      const bool runs = table.runs;
      LASP_ROLLED for (int64_t i = block * block_.threads() + block_.thread(); i < count; i += step) words[i] =
          empty_word(runs, static_cast<uint32_t>(i));
    }
  }

  const PackedTables &tables_;
  const void *offsets_;
  const PackedCut &cut_;
  const bool leads_;  // makes what all cuts share
  Block &block_;
};

}  // namespace lasp::gpu
