// The tables of a packing as the device makes them from its offsets, by a block of one thread on the host, against
// those that the host makes of a partition; and what the host counts without making them. Offsets that are not in
// order lead nowhere outside the tables.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "cuda/cut/packed_sizes.h"
#include "cuda/cut/runs.h"
#include "kernels/one_thread.h"

namespace lasp {
namespace {

// Tables in host memory with as much room as the plan gives them, and a guard behind each.
class HostTables {
 public:
  // With `ranks` each sequence is cut by itself.
  HostTables(const std::vector<gpu::PackedRange> &ranges, int64_t max_sequences, const gpu::CutTokens &cut,
             int32_t ranks = 0) {
    int64_t tokens = 0;
    for (const gpu::PackedRange &range : ranges) {
      tables.ranges[tables.num_ranges++] = range;
      tokens += range.end - range.begin;
    }
    if (ranks > 0) tables.rows = max_sequences, tables.ranks = ranks, tables.tokens = tokens;
    const int64_t most_segments =
        ranks > 0 ? max_sequences * tables.num_ranges : std::min(tokens, max_sequences + tables.num_ranges - 1);
    const gpu::CutCounts most = gpu::most_of_cut(tokens, most_segments, cut);
    tables.num_cuts = 1;
    tables.empty = add<int64_t>(max_sequences);
    tables.live = add<int64_t>(gpu::kLiveCount).data;
    gpu::PackedCut &c = tables.cuts[0];
    c.tokens = cut;
    c.scratch = add<gpu::PackedSegment>(most_segments).data;
    c.segments = add<gpu::Segment>(most_segments);
    c.state_runs = add<gpu::Run>(most.states);
    for (const int d : {0, 1}) {
      c.followed[d] = add<gpu::Run>(most.followed[d]);
      c.leading[d] = add<gpu::Run>(ranks > 0     ? most.states
                                   : tokens == 0 ? 0
                                                 : tokens / cut.state + tables.num_ranges);
      c.runs[d] = add<gpu::Run>(most.runs);
      c.consumers[d] = add<gpu::Run>(ranks > 0     ? most.runs
                                     : tokens == 0 ? 0
                                                   : (tokens - tables.num_ranges) / cut.run + tables.num_ranges);
      c.independent[d] = add<gpu::Run>(most.runs);
    }
    c.beginnings = add<gpu::Run>(most_segments);
  }

  void build(const std::vector<int64_t> &offsets) {
    tables.offsets = offsets.data();
    tables.sequences = static_cast<int64_t>(offsets.size()) - 1;
    gpu::OneThread block;
    gpu::TableBuilder<gpu::OneThread>(tables, tables.offsets, 0, block).build();
    for (const auto &memory : memory_) {
      for (size_t i = memory.size() - kGuard; i < memory.size(); ++i)
        ASSERT_EQ(memory[i], std::byte{0xa5})
            << "written behind table " << &memory - memory_.data() << " of " << memory.size() - kGuard << " bytes";
    }
  }

  gpu::PackedTables tables;

 private:
  static constexpr size_t kGuard = 256;
  template <class T>
  gpu::Table<T> add(int64_t count) {
    memory_.emplace_back(static_cast<size_t>(count) * sizeof(T) + kGuard, std::byte{0xa5});
    return {reinterpret_cast<T *>(memory_.back().data()), count};
  }
  std::vector<std::vector<std::byte>> memory_;
};

auto fields(const gpu::Run &r) {
  return std::tuple(r.row, r.begin, r.segment, r.state, r.starts, r.ends, r.length, r.before, r.after, r.entered,
                    r.path);
}
auto fields(const gpu::Segment &s) {
  const auto resets = [&](int d) { return s.produces[d] && s.resets[d]; };  // nobody reads it of others
  return std::tuple(s.path, s.sequence, s.first_run, s.num_runs, s.begins[0], s.begins[1], s.produces[0],
                    s.produces[1], s.consumes[0], s.consumes[1], resets(0), resets(1));
}

template <class T>
void expect_table(const gpu::Table<T> &table, const std::vector<T> &expected, const char *name) {
  ASSERT_LE(expected.size(), static_cast<size_t>(table.size)) << name;
  for (size_t i = 0; i < expected.size(); ++i)
    ASSERT_EQ(fields(table.data[i]), fields(expected[i])) << name << ", entry " << i;
}
void expect_rest_empty(const gpu::Table<gpu::Run> &table, size_t used, const char *name) {
  for (int64_t i = static_cast<int64_t>(used); i < table.size; ++i) ASSERT_EQ(table.data[i].length, 0) << name;
}

// `without`: ranges in which no sequence has a token; each has a segment that forgets.
void expect_sizes(const CutSizes &counted, const CutTables &expected, int64_t without) {
  const auto size = [](const auto &table) { return static_cast<int64_t>(table.size()); };
  ASSERT_EQ(counted.segments, size(expected.segments) + without);
  ASSERT_EQ(counted.state_runs, size(expected.state_runs));
  ASSERT_EQ(counted.runs, size(expected.runs[0]));
  ASSERT_EQ(counted.beginnings, size(expected.beginnings));
  ASSERT_EQ(counted.single_runs, expected.runs[0].size() == expected.segments.size());
  for (const int d : {0, 1}) {
    ASSERT_EQ(counted.followed[d], size(expected.followed[d]));
    ASSERT_EQ(counted.leading[d], size(expected.leading[d]));
    ASSERT_EQ(counted.consumers[d], size(expected.consumers[d]));
    ASSERT_EQ(counted.independent[d], size(expected.independent[d]));
  }
}

// Offsets of 32 bits for this rank give the same tables.
void expect_given(HostTables &from, const std::vector<gpu::PackedRange> &own, int64_t most,
                  const gpu::CutTokens &cut, const std::vector<int64_t> &offsets) {
  HostTables host(own, std::max<int64_t>(1, most), cut);
  std::vector<int64_t> given;
  const auto count = static_cast<int32_t>(own.size());
  for (const int64_t offset : offsets) given.push_back(gpu::given_offset(offset, own.data(), count));
  for (int32_t n = 0; n < count; ++n) host.tables.ranges[n] = gpu::given_range(own.data(), n);
  host.build(given);
  const gpu::PackedCut &a = from.tables.cuts[0], &b = host.tables.cuts[0];
  for (int i = 0; i < gpu::kLiveCount; ++i)
    if (i < gpu::kLivePadding + count) {
      ASSERT_EQ(from.tables.live[i], host.tables.live[i]) << i;
    }
  for (int64_t i = 0; i < std::min(a.state_runs.size, b.state_runs.size); ++i)
    ASSERT_EQ(fields(a.state_runs.data[i]), fields(b.state_runs.data[i]));
  for (int64_t i = 0; a.segments.size > 0 && i < from.tables.live[gpu::kLiveSegments]; ++i)
    ASSERT_EQ(fields(a.segments.data[i]), fields(b.segments.data[i]));
}

TokenPartition partition_of(const std::vector<int64_t> &offsets, const TokenRanges &ranges, int32_t rank);

class PackedTables : public testing::TestWithParam<std::tuple<int64_t, int64_t>> {};

TEST_P(PackedTables, AreThoseOfThePartition) {
  const gpu::CutTokens cut = {std::get<0>(GetParam()), std::get<1>(GetParam())};
  std::mt19937 random(7);
  for (int round = 0; round < 400; ++round) {
    const auto draw = [&](int64_t most) {
      return static_cast<int64_t>(random() % static_cast<uint64_t>(most + 1));
    };
    // Contiguous, or two, three runs of two ranks in turn.
    TokenRanges ranges;
    ranges.begin = {0};
    const bool in_turn = round % 3 == 0;
    for (int64_t r = 0, count = 1 + draw(in_turn ? 5 : 3); r < count; ++r) {
      ranges.begin.push_back(ranges.begin.back() + (in_turn ? 1 + draw(1300) : draw(1) * draw(2600)));
      if (in_turn) ranges.owner.push_back(static_cast<int32_t>(r % 2)), ranges.ranks = std::min<int32_t>(2, count);
    }
    std::vector<int64_t> offsets = {0};
    const int64_t sequences = draw(12), total = ranges.total();
    for (int64_t n = 0; n < sequences; ++n)
      offsets.push_back(std::min(total, offsets.back() + draw(2) * draw(total / 3 + 1)));
    if (draw(1) && sequences > 0) offsets.back() = total;
    for (int32_t rank = 0; rank < ranges.nranks(); ++rank) {
      SCOPED_TRACE("round " + std::to_string(round) + ", rank " + std::to_string(rank));
      const std::vector<gpu::PackedRange> own = packed_ranges(ranges, rank);
      HostTables host(own, std::max<int64_t>(1, sequences + draw(3)), cut);
      host.build(offsets);
      if (HasFatalFailure()) return;
      const TokenPartition partition = partition_of(offsets, ranges, rank);
      const CutTables expected = cut_runs(partition, cut.run, cut.state);
      const gpu::PackedCut &made = host.tables.cuts[0];
      expect_given(host, own, sequences + 3, cut, offsets);
      const PackedSizes counted = count_packing({offsets.data(), sequences, true, false}, own, {&cut, 1});
      int64_t without = 0;
      for (size_t n = 0; n < own.size(); ++n) {
        int64_t padding = own[n].local;
        for (const Segment &segment : partition.segments)
          if (segment.path == static_cast<int64_t>(n)) padding = segment.end;
        ASSERT_EQ(host.tables.live[gpu::kLivePadding + n], padding);
        without += padding == own[n].local && own[n].begin < own[n].end;
      }
      expect_sizes(counted.cuts[0], expected, without);
      ASSERT_EQ(counted.empty, static_cast<int64_t>(partition.empty_sequences.size()));
      ASSERT_EQ(counted.padded, offsets.back() < own.back().end);
      if (!expected.segments.empty()) expect_table(made.segments, expected.segments, "segments");
      expect_table(made.state_runs, expected.state_runs, "state_runs");
      expect_rest_empty(made.state_runs, expected.state_runs.size(), "state_runs");
      for (const int d : {0, 1}) {
        const auto check = [&](const gpu::Table<gpu::Run> &table, const std::vector<gpu::Run> &from,
                               const char *name) {
          expect_table(table, from, name);
          expect_rest_empty(table, from.size(), name);
        };
        check(made.followed[d], expected.followed[d], "followed");
        check(made.leading[d], expected.leading[d], "leading");
        check(made.runs[d], expected.runs[d], "runs");
        check(made.consumers[d], expected.consumers[d], "consumers");
        check(made.independent[d], expected.independent[d], "independent");
        for (size_t i = 0; cut.run % gpu::kFusedCheckpoint == 0 && i < expected.runs[d].size(); ++i)
          ASSERT_EQ(made.runs[d].data[i].checkpoint, expected.runs[d][i].checkpoint);
      }
      expect_table(made.beginnings, expected.beginnings, "beginnings");
      expect_rest_empty(made.beginnings, expected.beginnings.size(), "beginnings");
      ASSERT_EQ(host.tables.live[gpu::kLiveEmpty], static_cast<int64_t>(partition.empty_sequences.size()));
      for (size_t i = 0; i < partition.empty_sequences.size(); ++i)
        ASSERT_EQ(host.tables.empty.data[i], partition.empty_sequences[i]);
      ASSERT_EQ(host.tables.live[gpu::kLiveFollowed], static_cast<int64_t>(expected.followed[0].size()));
      const int64_t found = static_cast<int64_t>(expected.segments.size()) + without;
      if (made.segments.size > 0) {
        ASSERT_EQ(host.tables.live[gpu::kLiveSegments], found);
      }
      for (int64_t n = found - without; n < found; ++n)
        for (const int d : {0, 1})
          ASSERT_TRUE(made.segments.data[n].produces[d] && made.segments.data[n].resets[d]);
      if (HasFatalFailure()) return;
    }
  }
}

// A segment for each sequence and range; those that have tokens are the partition's.
TEST_P(PackedTables, OfSequencesThatAreCutByThemselves) {
  const gpu::CutTokens cut = {std::get<0>(GetParam()), std::get<1>(GetParam())};
  std::mt19937 random(11);
  const auto draw = [&](int64_t most) { return static_cast<int64_t>(random() % static_cast<uint64_t>(most + 1)); };
  for (int round = 0; round < 200; ++round) {
    const auto nranks = static_cast<int32_t>(1 + draw(3));
    const int64_t sequences = draw(9), rows = std::max<int64_t>(1, sequences + draw(3));
    std::vector<int64_t> offsets = {0}, divided = {0};
    for (int64_t n = 0; n < sequences; ++n) {
      offsets.push_back(offsets.back() + 2 * nranks * (draw(2) == 0 ? 0 : draw(900)));
      divided.push_back(offsets.back() / nranks);
    }
    const TokenRanges ranges = zigzag_each_ranges(nranks, offsets.back() / nranks + 2 * draw(20));
    for (int32_t rank = 0; rank < nranks; ++rank) {
      SCOPED_TRACE("round " + std::to_string(round) + ", rank " + std::to_string(rank));
      const std::vector<gpu::PackedRange> own = packed_ranges(ranges, rank);
      Problem p;
      p.packed = p.each = true, p.chunk = 16, p.num_sequences = rows;
      const TokenPartition partition = make_token_partition(p, ranges, rank, offsets);
      CutTables expected = cut_runs(partition, cut.run, cut.state);
      const PackedSizes counted =
          count_packing({offsets.data(), sequences, true, false}, own, {&cut, 1}, {nranks, rows});
      const int64_t paths = rows * static_cast<int64_t>(own.size());
      expect_sizes(counted.cuts[0], expected, paths - static_cast<int64_t>(expected.segments.size()));
      ASSERT_EQ(counted.empty, static_cast<int64_t>(partition.empty_sequences.size()));
      for (const bool given : {false, true}) {
        HostTables host(own, rows, cut, nranks);
        if (given) host.tables.ranks = 1;
        host.build(given ? divided : offsets);
        if (HasFatalFailure()) return;
        const gpu::PackedCut &made = host.tables.cuts[0];
        ASSERT_EQ(host.tables.live[gpu::kLiveSegments], paths);
        ASSERT_EQ(host.tables.live[gpu::kLivePadding], divided.back());
        ASSERT_EQ(host.tables.live[gpu::kLiveEmpty], counted.empty);
        for (int64_t i = 0; i < counted.empty; ++i)
          ASSERT_EQ(host.tables.empty.data[i], partition.empty_sequences[static_cast<size_t>(i)]);
        size_t next = 0;
        for (int64_t path = 0; path < paths; ++path) {
          const bool there = next < expected.segments.size() && expected.segments[next].path == path;
          const gpu::Segment none = gpu::segment_of_none(static_cast<int32_t>(path));
          ASSERT_EQ(fields(made.segments.data[path]), fields(there ? expected.segments[next] : none)) << path;
          next += there;
        }
        const auto check = [&](const gpu::Table<gpu::Run> &table, std::vector<gpu::Run> from, const char *name) {
          for (gpu::Run &run : from) run.segment = run.path;
          expect_table(table, from, name);
          expect_rest_empty(table, from.size(), name);
        };
        check(made.state_runs, expected.state_runs, "state_runs");
        check(made.beginnings, expected.beginnings, "beginnings");
        for (const int d : {0, 1}) {
          check(made.followed[d], expected.followed[d], "followed");
          check(made.leading[d], expected.leading[d], "leading");
          check(made.runs[d], expected.runs[d], "runs");
          check(made.consumers[d], expected.consumers[d], "consumers");
          check(made.independent[d], expected.independent[d], "independent");
        }
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_P(PackedTables, StayInTheirRoomWhateverTheOffsetsAre) {
  const gpu::CutTokens cut = {std::get<0>(GetParam()), std::get<1>(GetParam())};
  std::mt19937 random(9);
  for (int round = 0; round < 400; ++round) {
    const int64_t tokens = 1 + static_cast<int64_t>(random() % 3000), begin = static_cast<int64_t>(random() % 500);
    std::vector<int64_t> offsets;
    for (int n = 0, count = 1 + static_cast<int>(random() % 20); n <= count; ++n)
      offsets.push_back(round % 2 ? static_cast<int64_t>(random() % 5000) - 700
                                  : static_cast<int64_t>((uint64_t{random()} << 32) | random()));
    const int64_t cut_at = begin + tokens / 3;
    std::vector<gpu::PackedRange> ranges = {{begin, begin + tokens, 0, round % 3 == 0}};
    if (round % 5 == 0 && tokens >= 3)
      ranges = {{begin, cut_at, 0, false},
                {cut_at + 50, begin + tokens + 50, static_cast<int32_t>(tokens / 3), false}};
    HostTables host(ranges, static_cast<int64_t>(offsets.size()) - 1, cut);
    host.build(offsets);
    if (HasFatalFailure()) return;
    const TokenRanges of_each = zigzag_each_ranges(1 + round % 4, (tokens + 1) / 2 * 2);
    HostTables each(packed_ranges(of_each, round % of_each.nranks()), static_cast<int64_t>(offsets.size()) - 1, cut,
                    of_each.nranks());
    each.build(offsets);
    if (HasFatalFailure()) return;
    for (int64_t i = 0; i < each.tables.cuts[0].runs[0].size; ++i) {
      const gpu::Run &run = each.tables.cuts[0].runs[0].data[i];
      ASSERT_TRUE(run.begin >= 0 && run.begin + run.length <= (tokens + 1) / 2 * 2);
    }
    int64_t last = 0;
    const gpu::Table<gpu::Run> &runs = host.tables.cuts[0].runs[0];
    for (int64_t i = 0; i < runs.size; ++i) {
      if (runs.data[i].length == 0) continue;
      ASSERT_GE(runs.data[i].begin, last);
      last = runs.data[i].begin + runs.data[i].length;
      ASSERT_LE(last, tokens);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cuts, PackedTables,
                         testing::Values(std::tuple(256, 64), std::tuple(512, 512), std::tuple(1024, 256),
                                         std::tuple(4096, 1088), std::tuple(48, 24)));

TokenPartition partition_of(const std::vector<int64_t> &offsets, const TokenRanges &ranges, int32_t rank) {
  Problem p;
  p.packed = true;
  p.batch = 1;
  p.chunk = 16;
  p.num_sequences = static_cast<int64_t>(offsets.size()) - 1;
  return make_token_partition(p, ranges, rank, offsets);
}

}  // namespace
}  // namespace lasp
