#include "cuda/cut/packed_sizes.h"

#include <algorithm>

namespace lasp {
namespace {

// Of one range: what its segments add, and what the first and the last of them do besides, as gpu::TableBuilder
// places it.
void add_range(CutSizes &to, const gpu::CutCounts &counts, int64_t segments, const gpu::PackedSegment &head,
               const gpu::PackedSegment &tail, const gpu::CutTokens &cut) {
  const gpu::CutCounts of_head = gpu::count_cut(head.length, cut), of_tail = gpu::count_cut(tail.length, cut);
  to.segments += segments;
  to.state_runs += counts.states;
  to.runs += counts.runs;
  to.beginnings += segments - !head.starts;
  const int64_t consumers[2] = {head.starts ? 0 : of_head.runs, tail.ends ? 0 : of_tail.runs};
  const int64_t extra[2] = {of_tail.states - of_tail.followed[0], of_head.states - of_head.followed[1]};
  for (const int direction : {0, 1}) {
    to.consumers[direction] += consumers[direction];
    to.followed[direction] += counts.followed[direction];
    to.leading[direction] += counts.followed[direction] + extra[direction];
    to.independent[direction] += counts.runs - consumers[direction];
  }
  to.single_runs = to.single_runs && counts.runs == segments;
}

void count_range(PackedSizes &sizes, const Packing &packing, const gpu::PackedRange &range,
                 std::span<const gpu::CutTokens> cuts) {
  int64_t segments = 0;
  std::array<gpu::CutCounts, gpu::kMostCuts> counts;
  gpu::PackedSegment head, tail;
  int64_t from = packing[0];
  for (int64_t n = 0; n < packing.sequences; ++n) {
    const int64_t to = packing[n + 1], first = std::clamp(from, range.begin, range.end),
                  last = std::clamp(to, range.begin, range.end);
    if (from == to) {
      sizes.empty += (from >= range.begin && from < range.end) || (range.last && from >= range.end);
    } else if (first < last) {
      tail.length = last - first;
      tail.starts = first == from, tail.ends = last == to;
      if (segments++ == 0) head = tail;
      for (size_t i = 0; i < cuts.size(); ++i) counts[i] += gpu::count_cut(tail.length, cuts[i]);
    }
    from = to;
  }
  sizes.padded = sizes.padded || from < range.end;
  for (size_t i = 0; i < cuts.size(); ++i) {
    if (segments > 0) {
      add_range(sizes.cuts[i], counts[i], segments, head, tail, cuts[i]);
    } else if (range.begin < range.end) {
      sizes.cuts[i].segments += 1;  // one that forgets
    }
  }
}

// As gpu::TableBuilder places it too: a segment for each row, which is a path of its own.
void count_range_of_each(PackedSizes &sizes, const Packing &packing, const gpu::PackedRange &range,
                         std::span<const gpu::CutTokens> cuts, const EachSplit &each) {
  const bool both = range.part == gpu::PackedRange::kBothParts;
  for (size_t i = 0; i < cuts.size(); ++i) {
    CutSizes &to = sizes.cuts[i];
    gpu::CutCounts counts;
    int64_t segments = 0;
    for (int64_t n = 0; n < packing.sequences; ++n) {
      const int64_t length = (packing[n + 1] - packing[n]) / each.ranks / (both ? 1 : 2);
      segments += length > 0;
      counts += gpu::count_cut(length, cuts[i]);
    }
    if (i == 0 && range.starts) sizes.empty += packing.sequences - segments;
    to.segments += each.rows;
    to.state_runs += counts.states;
    to.runs += counts.runs;
    if (range.starts) to.beginnings += segments;
    const bool consumes[2] = {!range.starts, !range.ends};
    for (const int direction : {0, 1}) {
      to.followed[direction] += counts.followed[direction];
      to.leading[direction] += counts.states;
      (consumes[direction] ? to.consumers : to.independent)[direction] += counts.runs;
    }
    to.single_runs = to.single_runs && counts.runs == segments;
  }
}

}  // namespace

std::vector<gpu::PackedRange> packed_ranges(const TokenRanges &ranges, int32_t rank) {
  std::vector<gpu::PackedRange> own;
  int64_t local = 0;
  for (int32_t n = 0; n < ranges.runs_of(rank); ++n) {
    const int32_t position = ranges.position_of(rank, n);
    const auto at = static_cast<size_t>(position);
    own.push_back(
        {ranges.begin[at], ranges.begin[at + 1], static_cast<int32_t>(local), position + 1 == ranges.positions()});
    local += ranges.tokens(position);
    if (!ranges.each) continue;
    own.back().part = rank == ranges.nranks() - 1 ? gpu::PackedRange::kBothParts
                      : n == 0                    ? gpu::PackedRange::kFirstPart
                                                  : gpu::PackedRange::kSecondPart;
    own.back().starts = position == 0, own.back().ends = position + 1 == ranges.positions();
  }
  return own;
}

PackedSizes count_packing(const Packing &packing, std::span<const gpu::PackedRange> ranges,
                          std::span<const gpu::CutTokens> cuts, const EachSplit &each) {
  PackedSizes sizes;
  for (size_t i = 0; i < cuts.size(); ++i) sizes.cuts[i].single_runs = true;
  if (each.ranks > 0) {
    int64_t tokens = 0;
    for (const gpu::PackedRange &range : ranges) {
      count_range_of_each(sizes, packing, range, cuts, each);
      tokens += range.end - range.begin;
    }
    sizes.padded = packing[packing.sequences] / each.ranks < tokens;
    return sizes;
  }
  for (const gpu::PackedRange &range : ranges) count_range(sizes, packing, range, cuts);
  return sizes;
}

}  // namespace lasp
