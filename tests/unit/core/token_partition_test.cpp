// Segments, chunks, row ends and owners; the offset code beyond 2^31 elements; powers of a constant decay.
#include "core/token_partition.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "exchange/exchange.h"

namespace lasp {
namespace {

TokenRanges ranges(std::initializer_list<int64_t> tokens) {
  TokenRanges r;
  r.begin.push_back(0);
  for (const int64_t t : tokens) r.begin.push_back(r.begin.back() + t);
  return r;
}

Problem packed(int64_t most_sequences) {
  Problem p;
  p.packed = true;
  p.num_sequences = most_sequences;
  p.chunk = 16;
  return p;
}

TEST(TokenPartition, UnpackedRowsAreOneSegmentEach) {
  Problem p;
  p.batch = 3;
  p.num_sequences = 3;
  p.chunk = 16;
  const TokenRanges r = ranges({17, 0, 40});
  const TokenPartition first = make_token_partition(p, r, 0), empty = make_token_partition(p, r, 1),
                       last = make_token_partition(p, r, 2);
  ASSERT_EQ(first.segments.size(), 3u);
  EXPECT_EQ(first.chunks.size(), 6u);  // 16 + 1, three times
  for (int64_t row = 0; row < 3; ++row) {
    EXPECT_TRUE(first.segments[row].starts_here);
    EXPECT_FALSE(first.segments[row].ends_here);
    EXPECT_EQ(first.segments[row].sequence, row);
    EXPECT_EQ(first.forward[row].consumer, -1);
    EXPECT_EQ(first.forward[row].producer, row);
    EXPECT_TRUE(first.forward[row].reset);
    EXPECT_EQ(first.backward[row].consumer, row);
    EXPECT_FALSE(first.backward[row].reset);
    EXPECT_EQ(last.forward[row].consumer, row);
    EXPECT_TRUE(last.backward[row].reset);
  }
  EXPECT_TRUE(empty.segments.empty());
  EXPECT_EQ(empty.rows(), 3);
  EXPECT_EQ(empty.forward[0].producer, -1);
  EXPECT_FALSE(empty.forward[0].reset);
}

TEST(TokenPartition, BoundaryExactlyAtARankEdgeAndEmptySequencesThere) {
  const Problem p = packed(5);
  const std::vector<int64_t> cu = {0, 10, 20, 20, 20, 30};
  const TokenRanges r = ranges({20, 10});
  const TokenPartition left = make_token_partition(p, r, 0, cu), right = make_token_partition(p, r, 1, cu);
  ASSERT_EQ(left.segments.size(), 2u);
  EXPECT_TRUE(left.segments[1].ends_here);
  EXPECT_EQ(left.backward[0].consumer, -1) << "nothing comes back over a boundary";
  EXPECT_TRUE(left.forward[0].reset);
  EXPECT_EQ(right.forward[0].consumer, -1) << "nothing comes in over a boundary";
  EXPECT_TRUE(left.empty_sequences.empty());
  EXPECT_EQ(right.empty_sequences, (std::vector<int64_t>{2, 3})) << "they belong to the rank that holds token 20";
}

TEST(TokenPartition, EmptySequencesAtTheVeryEndBelongToTheLastRank) {
  const Problem p = packed(2);
  const std::vector<int64_t> cu = {0, 8, 8};
  EXPECT_EQ(make_token_partition(p, ranges({8, 0, 0}), 2, cu).empty_sequences, (std::vector<int64_t>{1}));
  EXPECT_TRUE(make_token_partition(p, ranges({8, 0, 0}), 0, cu).empty_sequences.empty());
}

TEST(TokenPartition, OwnersSkipEmptyRanks) {
  const TokenRanges r = ranges({0, 5, 0, 0, 5, 0});
  EXPECT_EQ(owners_of(r, 0, 10).first, 1);
  EXPECT_EQ(owners_of(r, 0, 10).last, 4);
  EXPECT_EQ(owners_of(r, 5, 5).first, 4);
  EXPECT_EQ(owners_of(r, 10, 10).first, 5);
}

TEST(TokenPartition, ResetsMatchTheSegments) {
  // The exchange works out other ranks' resets without their partitions; both must agree.
  Problem p;
  p.chunk = 16;
  for (const TokenRanges &r : {ranges({10, 10, 10}), ranges({0, 15, 15}), ranges({20, 0, 10}), ranges({1, 28, 1})})
    for (const Direction direction : {Direction::kLeftToRight, Direction::kRightToLeft}) {
      const ExchangePlan plan = make_exchange_plan(p, r, 0, direction, LASP_SCHEDULE_RING, 1);
      for (int32_t rank = 0; rank < 3; ++rank) {
        const TokenPartition partition = make_token_partition(p, r, rank);
        EXPECT_EQ(bool(plan.resets[rank]),
                  (direction == Direction::kLeftToRight ? partition.forward : partition.backward)[0].reset);
      }
    }
}

TEST(TokenPartition, PaddingIsNobodysAndARankOfPaddingChangesNothing) {
  const std::vector<int64_t> cu = {0, 6, 14};
  const Problem p = packed(2);
  const TokenRanges r = ranges({10, 10, 10});
  const TokenPartition middle = make_token_partition(p, r, 1, cu), last = make_token_partition(p, r, 2, cu);
  ASSERT_EQ(middle.segments.size(), 1u);
  EXPECT_EQ(middle.segments[0].end, 4);
  EXPECT_TRUE(middle.segments[0].ends_here);
  EXPECT_EQ(middle.backward[0].consumer, -1);
  EXPECT_TRUE(last.segments.empty());
  EXPECT_EQ(last.forward[0].producer, -1);
  EXPECT_FALSE(last.forward[0].reset);
}

// Any packing fits into the room that a plan reserves, and some packing needs all of it.
TEST(TokenPartition, NoPackingNeedsMoreThanTheMost) {
  std::mt19937 random(3);
  const auto below = [&](int64_t n) { return static_cast<int64_t>(random() % static_cast<uint64_t>(n)); };
  for (const int64_t segment : {int64_t{0}, int64_t{32}}) {
    Problem p = packed(7);
    p.segment = segment;
    const TokenRanges r = ranges({64, 70, 0, 3});
    PartitionSize seen[4];
    for (int i = 0; i < 20000; ++i) {
      std::vector<int64_t> cu = {0, r.total() - (below(2) == 0 ? below(40) : 0)};
      for (int64_t n = below(7); n > 0; --n) cu.push_back(below(cu[1] + 1));
      std::sort(cu.begin(), cu.end());
      for (int32_t rank = 0; rank < 4; ++rank) {
        const TokenPartition made = make_token_partition(p, r, rank, cu);
        p.tokens = r.tokens(rank);
        const PartitionSize most = most_of(p);
        ASSERT_LE(static_cast<int64_t>(made.segments.size()), most.segments);
        ASSERT_LE(static_cast<int64_t>(made.chunks.size()), most.chunks);
        seen[rank].segments = std::max(seen[rank].segments, static_cast<int64_t>(made.segments.size()));
        seen[rank].chunks = std::max(seen[rank].chunks, static_cast<int64_t>(made.chunks.size()));
      }
    }
    if (segment > 0) continue;
    for (const int32_t rank : {0, 2, 3}) {
      p.tokens = r.tokens(rank);
      EXPECT_EQ(seen[rank].segments, most_of(p).segments) << rank;
    }
    p.tokens = 64;
    EXPECT_EQ(static_cast<int64_t>(
                  make_token_partition(p, r, 0, std::vector<int64_t>{0, 1, 2, 3, 4, 5, 6, 64}).chunks.size()),
              most_of(p).chunks);
  }
}

// Three ranks: parts 0 and 5, 1 and 4, and 2 with 3 in one piece.
TEST(TokenPartition, ZigzagHasTwoRunsOfMostRanks) {
  const TokenRanges r = zigzag_ranges(3, 20);
  EXPECT_EQ(r.begin, (std::vector<int64_t>{0, 10, 20, 40, 50, 60}));
  EXPECT_EQ(r.owner, (std::vector<int32_t>{0, 1, 2, 1, 0}));
  EXPECT_EQ(r.nranks(), 3);
  EXPECT_EQ(r.position_of(1, 1), 3);
  EXPECT_EQ(r.position_of(2, 1), -1);
  EXPECT_EQ(owners_of(r, 0, 60).first, 0);
  EXPECT_EQ(owners_of(r, 0, 60).last, 0);
  EXPECT_EQ(owners_of(r, 12, 45).first, 1);
  EXPECT_EQ(owners_of(r, 25, 25).first, 2);
  EXPECT_EQ(owners_of(r, 60, 60).last, 0);
  EXPECT_EQ(zigzag_ranges(1, 20).positions(), 1);
  Problem p;
  p.chunk = 16, p.batch = 2, p.num_sequences = 2, p.runs = 2;
  const TokenPartition one = make_token_partition(p, r, 1);
  ASSERT_EQ(one.segments.size(), 4u);
  ASSERT_EQ(one.rows(), 4);
  for (int64_t path = 0; path < 4; ++path) {
    const Segment &segment = one.segments[static_cast<size_t>(path)];
    EXPECT_EQ(segment.path, path);
    EXPECT_EQ(segment.row, path % 2);
    EXPECT_EQ(segment.begin, path < 2 ? 0 : 10);
    EXPECT_FALSE(segment.starts_here || segment.ends_here);
    EXPECT_EQ(one.forward[static_cast<size_t>(path)].consumer, path);
    EXPECT_EQ(one.backward[static_cast<size_t>(path)].producer, path);
  }
  const TokenPartition first = make_token_partition(p, r, 0);
  EXPECT_EQ(first.forward[0].consumer, -1);
  EXPECT_EQ(first.forward[2].consumer, 2);
  EXPECT_TRUE(first.segments[3].ends_here);
}

TEST(TokenPartition, TwoRunsOfAPackingNeedNoMoreThanTheMost) {
  std::mt19937 random(4);
  const TokenRanges r = zigzag_ranges(3, 34);
  Problem p = packed(4);
  p.tokens = 34, p.runs = 2;
  for (int i = 0; i < 5000; ++i) {
    std::vector<int64_t> cu = {0, static_cast<int64_t>(random() % 103)};
    for (uint32_t n = random() % 4; n > 0; --n) cu.push_back(static_cast<int64_t>(random() % 103) % (cu[1] + 1));
    std::sort(cu.begin(), cu.end());
    for (const int32_t rank : {0, 1}) {
      const TokenPartition made = make_token_partition(p, r, rank, cu);
      ASSERT_LE(static_cast<int64_t>(made.segments.size()), most_of(p).segments);
      ASSERT_LE(static_cast<int64_t>(made.chunks.size()), most_of(p).chunks);
    }
  }
}

TEST(TokenPartition, IsMadeAgainInPlace) {
  const TokenRanges r = ranges({40, 40});
  Problem p = packed(5);
  p.tokens = 40;
  TokenPartition partition = make_token_partition(p, r, 1);
  reserve(partition, p);
  const Segment *segments = partition.segments.data();
  const Chunk *chunks = partition.chunks.data();
  for (const std::vector<int64_t> &cu :
       {std::vector<int64_t>{0, 80}, {0, 41, 42, 43, 44, 80}, {0}, {0, 10, 50, 50, 50, 60}}) {
    make_token_partition(partition, p, r, 1, cu);
    EXPECT_EQ(partition.segments.data(), segments);
    EXPECT_EQ(partition.chunks.data(), chunks);
    EXPECT_EQ(partition.segments.size(), make_token_partition(p, r, 1, cu).segments.size());
  }
}

TEST(Layout, OffsetsBeyondTwoToThe31Elements) {
  // 64 x 2^20 tokens x 64 heads x 128: 2^39 elements, 2 TiB in float32; only the arithmetic is exercised.
  const int64_t tokens = int64_t{1} << 20;
  const Layout contiguous{tokens * 64 * 128, 64 * 128, 128};
  EXPECT_EQ(contiguous.offset(63, tokens - 1, 63) + 127, (int64_t{1} << 39) - 1);
  EXPECT_EQ(contiguous.extent(64, tokens, 64, 128), int64_t{1} << 39);
  const Layout head_major{tokens * 64 * 128, 128, tokens * 128};
  EXPECT_EQ(head_major.offset(1, 2, 3), tokens * 64 * 128 + 256 + 3 * tokens * 128);
  EXPECT_EQ(contiguous.extent(64, 0, 64, 128), 0);
}

}  // namespace
}  // namespace lasp
