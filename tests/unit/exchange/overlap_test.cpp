// Which buffers share memory: layouts are drawn, their elements laid on a map, and what the map says is compared.
#include "overlap.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>
#include <vector>

namespace lasp {
namespace {

constexpr uintptr_t kBase = 1 << 20;

std::string text_of(const Place &p) {
  const Extent &e = p.extent;
  return "at " + std::to_string(p.address - kBase) + ": [" + std::to_string(e.batch) + ", " +
         std::to_string(e.tokens) + ", " + std::to_string(e.heads) + ", " + std::to_string(e.dim) + "] x " +
         std::to_string(e.element) + ", strides " + std::to_string(e.layout.batch) + ", " +
         std::to_string(e.layout.token) + ", " + std::to_string(e.layout.head);
}

template <class Visit>
void for_each_byte(const Place &p, Visit visit) {
  const Extent &e = p.extent;
  for (int64_t b = 0; b < e.batch; ++b)
    for (int64_t t = 0; t < e.tokens; ++t)
      for (int64_t h = 0; h < e.heads; ++h)
        for (int64_t byte = 0; byte < e.dim * e.element; ++byte)
          visit(p.address - kBase + static_cast<uintptr_t>(e.layout.offset(b, t, h) * e.element + byte));
}

bool share_on_a_map(const Place &a, const Place &b) {
  std::vector<bool> map(1 << 16);
  for_each_byte(a, [&](size_t at) { map.at(at) = true; });
  bool shared = false;
  for_each_byte(b, [&](size_t at) { shared = shared || map.at(at); });
  return shared;
}

class Draw {
 public:
  int64_t below(int64_t limit) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(limit)); }
  int64_t one_of(std::initializer_list<int64_t> values) {
    return values.begin()[below(static_cast<int64_t>(values.size()))];
  }

  // Strides as a validated problem has them: axes in any order, each as long as all before it reach, or longer.
  Extent tensor(int64_t most_gap) {
    Extent e;
    e.batch = 1 + below(3), e.tokens = 1 + below(4), e.heads = 1 + below(4), e.dim = one_of({1, 2, 8});
    e.element = one_of({2, 4});
    lay_out(e, most_gap);
    return e;
  }
  void lay_out(Extent &e, int64_t most_gap) {
    std::array<std::pair<int64_t *, int64_t>, 3> axes{
        {{&e.layout.batch, e.batch}, {&e.layout.token, e.tokens}, {&e.layout.head, e.heads}}};
    std::shuffle(axes.begin(), axes.end(), random_);
    int64_t span = e.dim;
    for (auto &[stride, count] : axes) {
      *stride = span + (below(2) == 0 ? 0 : below(most_gap + 1));
      span += *stride * (count - 1);
    }
  }
  Place place(const Extent &e, int64_t within) {
    return {kBase + static_cast<uintptr_t>(e.element * below(within / e.element)), e};
  }

 private:
  std::mt19937_64 random_{20260};
};

// Drawn so that about half of them share something.
TEST(Overlap, OfDrawnLayoutsIsWhatAMapSays) {
  Draw draw;
  int shared = 0, apart = 0;
  for (int i = 0; i < 60'000; ++i) {
    const Extent first = draw.tensor(i % 3 == 0 ? 0 : 20);
    Extent second = draw.tensor(20);
    if (i % 3 == 1) {  // parts of one packed buffer: the same strides, perhaps another number of heads
      second = first;
      second.heads = std::min<int64_t>(first.heads, 1 + draw.below(4));
      second.dim = std::min<int64_t>(first.dim, draw.one_of({1, 2, 8}));
    }
    const Place a = draw.place(first, 200), b = draw.place(second, 200);
    const bool truth = share_on_a_map(a, b);
    ASSERT_EQ(share_an_element(a, b), truth) << text_of(a) << "; " << text_of(b);
    ASSERT_EQ(share_an_element(b, a), truth) << text_of(a) << "; " << text_of(b);
    ++(truth ? shared : apart);
  }
  EXPECT_GT(shared, 10'000);
  EXPECT_GT(apart, 10'000);
}

TEST(Overlap, OfRunsIsThatOfTheirRanges) {
  const Place block{kBase + 64, Extent::run(64)};
  for (const auto &[address, bytes, meets] : {std::tuple(0, 64, false),
                                              {0, 65, true},
                                              {127, 1, true},
                                              {128, 10, false},
                                              {100, 0, false},
                                              {80, 8, true}}) {
    const Place other{kBase + static_cast<uintptr_t>(address), Extent::run(bytes)};
    EXPECT_EQ(ranges_meet(block, other), meets) << address << ", " << bytes;
    EXPECT_EQ(ranges_meet(other, block), meets) << address << ", " << bytes;
    EXPECT_EQ(share_an_element(block, other), meets) << address << ", " << bytes;
  }
}

// What trainers do: q, k and v of one projection, gradients likewise, and [B, H, T, D] tensors.
TEST(Overlap, PackedTensorsInterleaveWithoutSharing) {
  constexpr int64_t kTokens = 512, kHeads = 16, kKeyHeads = 4, kDim = 64;
  constexpr int64_t kWidth = (kHeads + 2 * kKeyHeads) * kDim;
  const auto part = [&](int64_t heads, int64_t at) {
    return Place{kBase + static_cast<uintptr_t>(2 * at * kDim),
                 {{kTokens * kWidth, kWidth, kDim}, 2, kTokens, heads, kDim, 2}};
  };
  const Place q = part(kHeads, 0), k = part(kKeyHeads, kHeads), v = part(kKeyHeads, kHeads + kKeyHeads);
  EXPECT_FALSE(share_an_element(q, k));
  EXPECT_FALSE(share_an_element(k, v));
  EXPECT_FALSE(share_an_element(q, v));
  EXPECT_TRUE(ranges_meet(q, v));
  const Place slipped = part(kKeyHeads, kHeads - 1);  // one head too far to the left
  EXPECT_TRUE(share_an_element(q, slipped));
  EXPECT_TRUE(share_an_element(slipped, k));
  // Per head [q | k | v], head after head.
  const auto third = [&](int64_t at) {
    return Place{kBase + static_cast<uintptr_t>(4 * at * kDim),
                 {{kTokens * kHeads * 3 * kDim, kHeads * 3 * kDim, 3 * kDim}, 2, kTokens, kHeads, kDim, 4}};
  };
  EXPECT_FALSE(share_an_element(third(0), third(1)));
  EXPECT_FALSE(share_an_element(third(1), third(2)));
  // A run that fits between two of k's rows, and one that does not.
  const int64_t gap = 2 * (kWidth - kKeyHeads * kDim);
  const uintptr_t after_first_row = k.address + 2 * kKeyHeads * kDim;
  EXPECT_FALSE(share_an_element(k, {after_first_row, Extent::run(gap)}));
  EXPECT_TRUE(share_an_element(k, {after_first_row, Extent::run(gap + 1)}));
  EXPECT_TRUE(share_an_element(k, {after_first_row - 1, Extent::run(gap)}));
}

// Numbers that no memory has, and strides that are hard to compare: an answer, soon, and never a false alarm.
TEST(Overlap, OfHugeOrHardLayoutsEnds) {
  const Extent huge{{int64_t{1} << 59, int64_t{1} << 58, int64_t{1} << 57}, 2, 2, 2, 8, 4};
  EXPECT_FALSE(share_an_element({kBase, huge}, {kBase + 32, huge}));
  // Even against odd: no common element, and no short way to see it.
  const Extent even{{1 << 28, 6, 2}, 40, 1 << 20, 3, 1, 1}, odd{{1 << 29, 10, 2}, 20, 1 << 20, 4, 1, 1};
  EXPECT_FALSE(share_an_element({kBase, even}, {kBase + 1, odd}));
}

}  // namespace
}  // namespace lasp
