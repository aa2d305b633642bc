// Who sends which rows to whom: what all ranks plan fits together, and is what the definition says.
#include "core/halo.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "base/status.h"
#include "core/workspace.h"

namespace lasp {
namespace {

struct Split {
  std::vector<int64_t> offsets;
  TokenRanges ranges;
  HaloShape shape;
};

// Every third time ranks have several runs, in any order but no neighbours.
void draw_owners(std::mt19937 &random, TokenRanges &ranges) {
  if (random() % 3 != 0) return;
  ranges.ranks = 1 + static_cast<int32_t>(random() % static_cast<uint32_t>(ranges.positions()));
  for (int32_t p = 0; p < ranges.positions(); ++p)
    ranges.owner.push_back(
        (p < ranges.ranks ? p : static_cast<int32_t>(random() % static_cast<uint32_t>(ranges.ranks))));
}

Split drawn(std::mt19937 &random) {
  const auto below = [&](int64_t n) { return static_cast<int64_t>(random() % static_cast<uint64_t>(n)); };
  Split s;
  s.shape.rows = 1 + below(below(2) == 0 ? 4 : kMostHaloRows);
  s.shape.channels = 1 + below(20);
  s.ranges.begin = {0};
  for (int64_t nranks = 1 + below(12); nranks > 0; --nranks) {
    const int64_t most[] = {0, 1, 2, s.shape.rows, 3 * s.shape.rows};
    s.ranges.begin.push_back(s.ranges.begin.back() + below(most[below(5)] + 1));
  }
  draw_owners(random, s.ranges);
  if (below(2) == 0) {
    s.shape.packed = true;
    s.offsets = {0, below(3) == 0 ? below(s.ranges.total() + 1) : s.ranges.total()};
    for (int64_t i = below(8); i > 0; --i) s.offsets.push_back(below(s.offsets[1] + 1));
    std::sort(s.offsets.begin(), s.offsets.end());
  } else {
    s.shape.batch = 1 + below(3);
  }
  if (below(2) == 0) s.shape.dtype = DType::kBFloat16;
  if (below(2) == 0) s.shape.d_dtype = DType::kFloat16;
  return s;
}

// The tokens that rank r gets, and how many of them it uses, by the words of lasp.h.
std::vector<int64_t> wanted_by(const Split &s, int32_t r) {
  std::vector<int64_t> tokens;
  const int64_t begin = s.ranges.begin[static_cast<size_t>(r)];
  for (int64_t t = begin - s.shape.rows; t < begin; ++t)
    if (s.ranges.tokens(r) > 0 && t >= 0) tokens.push_back(t);
  return tokens;
}
int64_t used_by(const Split &s, int32_t r) {
  const int64_t begin = s.ranges.begin[static_cast<size_t>(r)];
  int64_t sequence = 0, used = 0;
  for (const int64_t offset : s.offsets)
    if (offset <= begin) sequence = offset;
  if (!s.offsets.empty() && begin >= s.offsets.back()) return 0;
  for (const int64_t t : wanted_by(s, r)) used += t >= sequence;
  return used;
}

void expect_fits(const Split &s) {
  std::vector<HaloPlan> plans;
  for (int32_t r = 0; r < s.ranges.nranks(); ++r) plans.push_back(make_halo_plan(s.shape, s.ranges, r));
  for (int32_t r = 0; r < s.ranges.nranks(); ++r) {
    const HaloPlan &plan = plans[static_cast<size_t>(r)];
    for (size_t n = 0; n < plan.positions.size(); ++n) {
      const int32_t own = plan.positions[n];
      const int64_t begin = s.ranges.begin[static_cast<size_t>(own)];
      std::vector<int64_t> tokens;
      for (const HaloPart &part : plan.wanted) {
        if (part.to != own) continue;
        ASSERT_LT(part.from, own);
        ASSERT_EQ(part.peer, s.ranges.owner_of(part.from));
        ASSERT_GE(part.count, 1);
        const int64_t row = part.begin - static_cast<int64_t>(n) * s.shape.batch * s.shape.rows;
        for (int64_t i = 0; i < part.count; ++i) tokens.push_back(begin - s.shape.rows + row + i);
        // The peer gives just that, once.
        const HaloPlan &other = plans[static_cast<size_t>(part.peer)];
        const auto gives = [&](const HaloPart &given) { return given.from == part.from && given.to == own; };
        ASSERT_EQ(std::count_if(other.given.begin(), other.given.end(), gives), 1);
        const HaloPart &same = *std::find_if(other.given.begin(), other.given.end(), gives);
        EXPECT_EQ(same.peer, r);
        EXPECT_EQ(same.count, part.count);
        const auto at =
            std::find(other.positions.begin(), other.positions.end(), part.from) - other.positions.begin();
        const int64_t local = same.begin - other.local_begins[static_cast<size_t>(at)];
        EXPECT_EQ(s.ranges.begin[static_cast<size_t>(part.from)] + local, begin - s.shape.rows + row);
        EXPECT_LE(local + part.count, s.ranges.tokens(part.from));
        if (part.peer == r) {
          EXPECT_EQ(same.place, part.place) << "both sides of what is no message have the same place";
        }
      }
      EXPECT_EQ(tokens, wanted_by(s, own));
      EXPECT_EQ(plan.missing(own, s.offsets), s.shape.rows - used_by(s, own));
      const auto of_run = [&](const auto &parts, int32_t HaloPart::*position) {
        return std::count_if(parts.begin(), parts.end(),
                             [&](const HaloPart &part) { return part.*position == own; });
      };
      EXPECT_LE(of_run(plan.given, &HaloPart::from), s.shape.rows);
      EXPECT_LE(of_run(plan.wanted, &HaloPart::to), s.shape.rows);
    }
    for (const HaloPart &part : plan.given) {
      const std::vector<HaloPart> &wanted = plans[static_cast<size_t>(part.peer)].wanted;
      EXPECT_EQ(
          std::count_if(wanted.begin(), wanted.end(),
                        [&](const HaloPart &other) { return other.from == part.from && other.to == part.to; }),
          1);
    }
    // Messages of either type lie apart in the workspace, or in `before` in one piece.
    const DType widest = size_of(s.shape.dtype) == 4 ? s.shape.dtype : s.shape.d_dtype;
    int64_t used = 0;
    for (const auto *parts : {&plan.given, &plan.wanted})
      for (const HaloPart &part : *parts) {
        if (parts == &plan.wanted && part.peer == r) continue;
        if (part.place < 0) {
          EXPECT_EQ(parts, &plan.wanted);
          EXPECT_TRUE(s.shape.batch == 1 || part.count == s.shape.rows);
          continue;
        }
        EXPECT_EQ(part.place % static_cast<int64_t>(kAlignment), 0);
        EXPECT_GE(part.place, used);
        used = part.place + static_cast<int64_t>(plan.bytes(part, widest));
      }
    EXPECT_GE(plan.workspace_bytes, static_cast<uint64_t>(used));
    EXPECT_LT(plan.workspace_bytes, static_cast<uint64_t>(used) + kAlignment);
  }
}

TEST(HaloPlan, OfAllRanksFitTogether) {
  std::mt19937 random(7);
  for (int i = 0; i < 3000 && !testing::Test::HasFailure(); ++i) {
    const Split s = drawn(random);
    SCOPED_TRACE(testing::Message() << "split " << i);
    expect_fits(s);
  }
}

// More ranks than there is patience for: what a plan costs does not grow with how many have no tokens before it.
TEST(HaloPlan, OfManyRanksWithoutTokens) {
  Split s;
  s.shape.rows = 3;
  s.ranges.begin.assign(65537, 5);
  s.ranges.begin.front() = 0;
  s.ranges.begin.back() = 7;
  const HaloPlan last = make_halo_plan(s.shape, s.ranges, 65535);
  ASSERT_EQ(last.wanted.size(), 1u);
  EXPECT_EQ(last.wanted[0].peer, 0);
  const HaloPlan first = make_halo_plan(s.shape, s.ranges, 0);
  ASSERT_EQ(first.given.size(), 1u);
  EXPECT_EQ(first.given[0].peer, 65535);
}

class HaloOptions : public testing::Test {
 protected:
  HaloOptions() {
    problem.batch = 2, problem.tokens = 10, problem.dtype = DType::kBFloat16;
    options.channels = 6;
  }
  HaloShape shape() const { return validate(options, problem); }

  Problem problem;
  lasp_halo_options options = LASP_HALO_OPTIONS_INIT;
};

TEST_F(HaloOptions, TakeTheProblemsTypeAndContiguousRows) {
  const HaloShape s = shape();
  EXPECT_EQ(s.dtype, DType::kBFloat16);
  EXPECT_EQ(s.d_dtype, DType::kBFloat16);
  EXPECT_EQ(s.x.offset(1, 2, 0), 72);
  EXPECT_EQ(s.before().offset(1, 0, 0), 6);
  EXPECT_EQ(s.rows, 1);
}

TEST_F(HaloOptions, StridesOfAnInputMayBeZero) {
  options.x.flags = LASP_LAYOUT_STRIDED;
  options.x.batch = 6;
  EXPECT_EQ(shape().x.offset(1, 9, 0), 6);
  options.x.batch = 0;
  EXPECT_EQ(shape().x.offset(1, 9, 0), 0);
  options.d_x.flags = LASP_LAYOUT_STRIDED;
  EXPECT_THROW(shape(), Error) << "an output's elements have places of their own";
  options.d_x.token = 5;
  EXPECT_THROW(shape(), Error) << "rows would overlap";
  options.d_x.token = 6, options.d_x.batch = 60;
  EXPECT_EQ(shape().d_x.offset(1, 1, 0), 66);
}

}  // namespace
}  // namespace lasp
