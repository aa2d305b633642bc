// Segments, chunks, row ends and owners; the offset code beyond 2^31 elements; powers of a constant decay.
#include "core/token_partition.h"

#include <gtest/gtest.h>

#include <cmath>

#include "exchange/exchange.h"

namespace lasp {
namespace {

TokenRanges ranges(std::initializer_list<int64_t> tokens) {
  TokenRanges r;
  r.begin.push_back(0);
  for (const int64_t t : tokens) r.begin.push_back(r.begin.back() + t);
  return r;
}

Problem packed(std::vector<int64_t> cu) {
  Problem p;
  p.packed = true;
  p.num_sequences = static_cast<int64_t>(cu.size()) - 1;
  p.cu_seqlens = std::move(cu);
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
  const Problem p = packed({0, 10, 20, 20, 20, 30});
  const TokenRanges r = ranges({20, 10});
  const TokenPartition left = make_token_partition(p, r, 0), right = make_token_partition(p, r, 1);
  ASSERT_EQ(left.segments.size(), 2u);
  EXPECT_TRUE(left.segments[1].ends_here);
  EXPECT_EQ(left.backward[0].consumer, -1) << "nothing comes back over a boundary";
  EXPECT_TRUE(left.forward[0].reset);
  EXPECT_EQ(right.forward[0].consumer, -1) << "nothing comes in over a boundary";
  EXPECT_TRUE(left.empty_sequences.empty());
  EXPECT_EQ(right.empty_sequences, (std::vector<int64_t>{2, 3})) << "they belong to the rank that holds token 20";
}

TEST(TokenPartition, EmptySequencesAtTheVeryEndBelongToTheLastRank) {
  const Problem p = packed({0, 8, 8});
  EXPECT_EQ(make_token_partition(p, ranges({8, 0, 0}), 2).empty_sequences, (std::vector<int64_t>{1}));
  EXPECT_TRUE(make_token_partition(p, ranges({8, 0, 0}), 0).empty_sequences.empty());
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
  for (const auto &cu :
       std::vector<std::vector<int64_t>>{{0, 30}, {0, 10, 20, 20, 30}, {0, 1, 2, 29, 30}, {0, 0, 15, 30, 30}}) {
    const Problem p = packed(cu);
    for (const TokenRanges &r :
         {ranges({10, 10, 10}), ranges({0, 15, 15}), ranges({20, 0, 10}), ranges({1, 28, 1})})
      for (const Direction direction : {Direction::kLeftToRight, Direction::kRightToLeft}) {
        const ExchangePlan plan = make_exchange_plan(p, r, 0, direction, LASP_SCHEDULE_RING, 1);
        for (int32_t rank = 0; rank < 3; ++rank) {
          const TokenPartition partition = make_token_partition(p, r, rank);
          EXPECT_EQ(bool(plan.resets[rank]),
                    (direction == Direction::kLeftToRight ? partition.forward : partition.backward)[0].reset);
        }
      }
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
