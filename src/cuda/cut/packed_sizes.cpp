#include "cuda/cut/packed_sizes.h"

#include <algorithm>

namespace lasp {
namespace {

// What the first and last segments add besides, as gpu::TableBuilder places it.
CutSizes sizes_of(const gpu::CutCounts &counts, int64_t segments, const gpu::PackedSegment &head,
                  const gpu::PackedSegment &tail, const gpu::CutTokens &cut) {
  const gpu::CutCounts of_head = gpu::count_cut(head.length, cut), of_tail = gpu::count_cut(tail.length, cut);
  CutSizes to;
  to.segments = segments;
  to.state_runs = counts.states;
  to.runs = counts.runs;
  to.beginnings = segments - !head.starts;
  to.consumers[0] = head.starts ? 0 : of_head.runs;
  to.consumers[1] = tail.ends ? 0 : of_tail.runs;
  const int64_t extra[2] = {of_tail.states - of_tail.followed[0], of_head.states - of_head.followed[1]};
  for (const int direction : {0, 1}) {
    to.followed[direction] = counts.followed[direction];
    to.leading[direction] = counts.followed[direction] + extra[direction];
    to.independent[direction] = counts.runs - to.consumers[direction];
  }
  to.single_runs = counts.runs == segments;
  return to;
}

}  // namespace

PackedSizes count_packing(const Packing &packing, int64_t begin, int64_t tokens, bool last_rank,
                          std::span<const gpu::CutTokens> cuts) {
  PackedSizes sizes;
  int64_t segments = 0;
  std::array<gpu::CutCounts, gpu::kMostCuts> counts;
  gpu::PackedSegment head, tail;
  const int64_t end = begin + tokens;
  int64_t from = packing[0];
  for (int64_t n = 0; n < packing.sequences; ++n) {
    const int64_t to = packing[n + 1], first = std::clamp(from, begin, end), last = std::clamp(to, begin, end);
    if (from == to) {
      sizes.empty += (from >= begin && from < end) || (last_rank && from >= end);
    } else if (first < last) {
      tail.begin = first - begin, tail.length = last - first;
      tail.starts = first == from, tail.ends = last == to;
      if (segments++ == 0) head = tail;
      for (size_t i = 0; i < cuts.size(); ++i) counts[i] += gpu::count_cut(tail.length, cuts[i]);
    }
    from = to;
  }
  sizes.padded = from < end;
  for (size_t i = 0; i < cuts.size(); ++i)
    if (segments > 0)
      sizes.cuts[i] = sizes_of(counts[i], segments, head, tail, cuts[i]);
    else
      sizes.cuts[i].single_runs = true;
  return sizes;
}

}  // namespace lasp
