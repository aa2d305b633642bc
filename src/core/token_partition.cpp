#include "core/token_partition.h"

#include <algorithm>

namespace lasp {
namespace {

void cut_into_chunks(TokenPartition &partition, int32_t chunk) {
  for (size_t s = 0; s < partition.segments.size(); ++s) {
    Segment &segment = partition.segments[s];
    segment.first_chunk = static_cast<int64_t>(partition.chunks.size());
    for (int64_t t = segment.begin; t < segment.end; t += chunk)
      partition.chunks.push_back(
          {static_cast<int64_t>(s), t, static_cast<int32_t>(std::min<int64_t>(chunk, segment.end - t))});
    segment.num_chunks = static_cast<int64_t>(partition.chunks.size()) - segment.first_chunk;
  }
}

// The two ends of a row: segments [first, last] of it; none when the rank holds no tokens.
void connect_row(TokenPartition &partition, int64_t first, int64_t last) {
  RowPath forward, backward;
  if (first <= last) {
    const Segment &head = partition.segments[static_cast<size_t>(first)];
    const Segment &tail = partition.segments[static_cast<size_t>(last)];
    forward = {head.starts_here ? -1 : first, last, tail.starts_here};
    backward = {tail.ends_here ? -1 : last, first, head.ends_here};
  }
  partition.forward.push_back(forward);
  partition.backward.push_back(backward);
}

struct Run {
  int32_t position, rank, n;
  int64_t local;
};

// Those of a run of each sequence by itself.
void cut_run_of_each(TokenPartition &partition, const Problem &problem, const TokenRanges &ranges, const Run &run,
                     OffsetSpan offsets) {
  const int32_t last = ranges.positions() - 1;
  for (int64_t n = 0; n < problem.num_sequences; ++n) {
    const auto first = static_cast<int64_t>(partition.segments.size());
    // Before the first packing: one sequence of all tokens.
    const bool given = n + 1 < static_cast<int64_t>(offsets.size()), whole = offsets.empty() && n == 0;
    const auto at = static_cast<size_t>(n);
    const int64_t from = given ? offsets[at] : 0, to = given ? offsets[at + 1] : whole ? ranges.total() : 0;
    const auto [begin, end] = run_of_each(ranges, run.rank, run.n, from, to);
    if (begin < end)
      partition.segments.push_back(
          {0, partition.rows(), n, begin, end, run.position == 0, run.position == last, 0, 0});
    if (given && begin == end && run.position == 0) partition.empty_sequences.push_back(n);
    connect_row(partition, first, static_cast<int64_t>(partition.segments.size()) - 1);
  }
}

// The segments of one run, for each batch row.
void cut_run(TokenPartition &partition, const Problem &problem, const TokenRanges &ranges, const Run &run,
             OffsetSpan offsets) {
  if (problem.each) return cut_run_of_each(partition, problem, ranges, run, offsets);
  const auto position = static_cast<size_t>(run.position);
  const int64_t begin = ranges.begin[position], end = ranges.begin[position + 1], shift = run.local - begin;
  const int64_t per_row = offsets.empty() ? 1 : static_cast<int64_t>(offsets.size()) - 1;
  for (int64_t row = 0; row < problem.batch; ++row) {
    const auto first = static_cast<int64_t>(partition.segments.size());
    const int64_t path = partition.rows();
    for (int64_t i = 0; i < per_row; ++i) {
      const int64_t n = offsets.empty() ? row : i;
      const auto [from, to] = sequence_range(offsets, ranges, n);
      if (from == to && run.n == 0 && owners_of(ranges, from, to).first == run.rank)
        partition.empty_sequences.push_back(n);
      int64_t cut_from = std::max(from, begin);
      const int64_t stop = std::min(to, end);
      while (cut_from < stop) {
        const int64_t edge = problem.segment > 0 ? (cut_from / problem.segment + 1) * problem.segment : stop;
        const int64_t cut_to = std::min(edge, stop);
        partition.segments.push_back(
            {row, path, n, cut_from + shift, cut_to + shift, from == cut_from, to == cut_to, 0, 0});
        cut_from = cut_to;
      }
    }
    connect_row(partition, first, static_cast<int64_t>(partition.segments.size()) - 1);
  }
}

}  // namespace

int32_t TokenRanges::runs_of(int32_t rank) const {
  return owner.empty() ? 1 : static_cast<int32_t>(std::count(owner.begin(), owner.end(), rank));
}

int32_t TokenRanges::most_runs() const {
  if (owner.empty()) return 1;
  std::vector<int32_t> runs(static_cast<size_t>(ranks), 0);
  for (const int32_t rank : owner) ++runs[static_cast<size_t>(rank)];
  return *std::max_element(runs.begin(), runs.end());
}

int32_t TokenRanges::position_of(int32_t rank, int32_t n) const {
  if (owner.empty()) return n == 0 ? rank : -1;
  for (int32_t position = 0; position < positions(); ++position)
    if (owner_of(position) == rank && n-- == 0) return position;
  return -1;
}

TokenRanges zigzag_ranges(int32_t nranks, int64_t tokens) {
  TokenRanges ranges;
  ranges.begin = {0};
  if (nranks == 1) {
    ranges.begin.push_back(tokens);
    return ranges;
  }
  ranges.ranks = nranks;
  for (int32_t position = 0; position < 2 * nranks - 1; ++position) {
    const int32_t rank = std::min(position, 2 * nranks - 2 - position);
    ranges.owner.push_back(rank);
    ranges.begin.push_back(ranges.begin.back() + (rank == nranks - 1 ? tokens : tokens / 2));
  }
  return ranges;
}

TokenRanges zigzag_each_ranges(int32_t nranks, int64_t tokens) {
  TokenRanges ranges = zigzag_ranges(nranks, tokens);
  ranges.each = true;
  return ranges;
}

std::pair<int64_t, int64_t> run_of_each(const TokenRanges &ranges, int32_t rank, int32_t n, int64_t from,
                                        int64_t to) {
  const int64_t part = (to - from) / parts_of_each(ranges), begin = from / ranges.nranks() + n * part;
  const bool middle = rank == ranges.nranks() - 1;  // its two parts are neighbours
  return {begin, begin + (middle ? 2 : 1) * part};
}

TokenRanges listed_ranges(int32_t nranks, std::span<const lasp_run> runs) {
  TokenRanges ranges;
  ranges.begin = {0};
  ranges.ranks = nranks;
  for (const lasp_run &run : runs) {
    if (run.tokens == 0) continue;
    const bool goes_on = !ranges.owner.empty() && ranges.owner.back() == run.rank;
    const int64_t end = ranges.begin.back() + run.tokens;
    if (goes_on) {
      ranges.begin.back() = end;
    } else {
      ranges.owner.push_back(run.rank);
      ranges.begin.push_back(end);
    }
  }
  if (ranges.owner.empty()) {  // somebody owns empty sequences
    ranges.owner.push_back(runs.back().rank);
    ranges.begin.push_back(0);
  }
  return ranges;
}

Owners owners_of(const TokenRanges &ranges, int64_t begin, int64_t end) {
  if (ranges.each) return {0, 0};
  // The last range that begins at or before the token; empty ranges that begin there too come before it.
  const auto holder = [&](int64_t token) {
    const auto after = std::upper_bound(ranges.begin.begin(), ranges.begin.end() - 1, token);
    return ranges.owner_of(static_cast<int32_t>(after - ranges.begin.begin()) - 1);
  };
  if (begin == end) {
    const int32_t owner = begin == ranges.total() ? ranges.owner_of(ranges.positions() - 1) : holder(begin);
    return {owner, owner};
  }
  return {holder(begin), holder(end - 1)};
}

std::pair<int64_t, int64_t> sequence_range(OffsetSpan offsets, const TokenRanges &ranges, int64_t sequence) {
  if (offsets.empty()) return {0, ranges.total()};
  const auto n = static_cast<size_t>(sequence);
  return {offsets[n], offsets[n + 1]};
}

int64_t beginning_of(OffsetSpan offsets, int64_t token) {
  if (offsets.empty()) return 0;
  const auto after = std::upper_bound(offsets.begin(), offsets.end(), token);
  return after == offsets.end() ? -1 : *(after - 1);
}

// Of n sequences that have tokens here all but one chunk of each are full, or one segment's last one. Each run more
// cuts one sequence, or all of them.
PartitionSize most_of(const Problem &problem) {
  int64_t segments = problem.each ? problem.num_sequences * problem.runs : problem.num_sequences + problem.runs - 1;
  segments = std::min(segments, problem.tokens);
  if (problem.segment > 0)
    segments = std::min(segments + (problem.tokens + problem.segment - 1) / problem.segment, problem.tokens);
  return {segments, segments + (problem.tokens - segments) / problem.chunk};
}

void reserve(TokenPartition &partition, const Problem &problem) {
  const PartitionSize most = most_of(problem);
  partition.segments.reserve(static_cast<size_t>(most.segments));
  partition.chunks.reserve(static_cast<size_t>(most.chunks));
  partition.empty_sequences.reserve(static_cast<size_t>(problem.num_sequences));
}

void make_token_partition(TokenPartition &partition, const Problem &problem, const TokenRanges &ranges,
                          int32_t rank, OffsetSpan offsets) {
  partition.segments.clear();
  partition.chunks.clear();
  partition.forward.clear();
  partition.backward.clear();
  partition.empty_sequences.clear();
  int64_t local = 0;  // of the run's first token
  for (int32_t n = 0; n < kMostRuns; ++n) {
    const int32_t position = ranges.position_of(rank, n);
    if (position < 0) break;
    cut_run(partition, problem, ranges, {position, rank, n, local}, offsets);
    local += ranges.tokens(position);
  }
  cut_into_chunks(partition, problem.chunk);
}

TokenPartition make_token_partition(const Problem &problem, const TokenRanges &ranges, int32_t rank,
                                    OffsetSpan offsets) {
  TokenPartition partition;
  make_token_partition(partition, problem, ranges, rank, offsets);
  return partition;
}

}  // namespace lasp
