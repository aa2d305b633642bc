// Maps in a caller's hands: ranks of detached comms played one after the other, maps composed as a tree and by the
// arithmetic that the header documents, and what a map forgets.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "support/group.h"
#include "support/measure.h"
#include "support/played_ranks.h"

namespace lasp_test {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInfinity = std::numeric_limits<float>::infinity();

RunOptions staged_options(bool carry = true) {
  RunOptions options;
  options.schedule = LASP_SCHEDULE_ALL_GATHER;
  options.carry = carry;
  return options;
}

Outputs by_all_gather(const Case &c, const CaseData &data, int32_t nranks) {
  return run_case(c, data, Transport::threads, nranks, staged_options());
}

using Results = std::vector<std::array<std::vector<float>, kTensors>>;

void expect_same_bits(const Results &staged, const Outputs &whole, bool head_decay_sums = true) {
  ASSERT_EQ(whole.complaints, "");
  ASSERT_EQ(staged.size(), whole.ranks.size());
  for (size_t rank = 0; rank < staged.size(); ++rank)
    for (int id = 0; id < kTensors; ++id) {
      if (id == kDDecay && !head_decay_sums) continue;
      const std::vector<float> &a = staged[rank][id], &b = whole.ranks[rank].tensors[id];
      ASSERT_EQ(a.size(), b.size());
      EXPECT_TRUE(a.empty() || std::memcmp(a.data(), b.data(), 4 * a.size()) == 0)
          << kTensorNames[id] << " on rank " << rank;
    }
}

Case even_case(int32_t kind, int32_t nranks) {
  const int32_t decay = kind % (LASP_DECAY_CHANNEL + 1);
  Case c;
  c.delta = kind > LASP_DECAY_CHANNEL;
  c.name = "even";
  c.batch = 2, c.tokens = 41 * nranks, c.heads_k = 1, c.head_dim_v = 24, c.chunk = 16;
  c.decay = decay;
  return c;
}

// The data of the batch that comes between changes the decay of every head, too.
void expect_bits_when_played(const Case &c, int32_t nranks) {
  const CaseData data = make_data(c), other = make_data(c, 5);
  for (const bool carry : {true, false}) {
    SCOPED_TRACE(testing::Message() << c.name << ", decay " << c.decay << ", cache " << c.cache << ", " << nranks
                                    << " ranks, " << (carry ? "with" : "without") << " carry");
    PlayedRanks ranks(c, data, nranks, true, staged_options(carry), &other);
    ASSERT_EQ(ranks.complaints(), "");
    ranks.prepare(nullptr);
    ranks.run(nullptr);
    const Results results = ranks.results(nullptr);
    ASSERT_EQ(ranks.complaints(), "");
    expect_same_bits(results, by_all_gather(c, data, nranks));
  }
}

// The decays of the additive write, and behind them those of the delta write.
constexpr int32_t kWrites = 2, kDecayKinds = LASP_DECAY_CHANNEL + 1;

class Detached : public testing::TestWithParam<int32_t> {};

TEST_P(Detached, RanksArePlayedOneAfterTheOther) {
  for (const int32_t nranks : {1, 2, 3, 5}) {
    for (const int32_t cache : {LASP_CACHE_INCOMING, LASP_CACHE_CHUNKS}) {
      Case c = even_case(GetParam(), nranks);
      c.cache = cache;
      expect_bits_when_played(c, nranks);
      c.name = "even_packed", c.batch = 1;
      c.cu_seqlens = {0, 3, 3, c.tokens / 2, c.tokens - 1, c.tokens};
      expect_bits_when_played(c, nranks);
      c.cu_seqlens = {0, c.tokens};
      expect_bits_when_played(c, nranks);
    }
  }
  Case none = even_case(GetParam(), 3);
  none.name = "no_tokens", none.tokens = 0;
  expect_bits_when_played(none, 3);
}

// Whatever a group of other comms would do.
TEST_P(Detached, ThreadsHaveTheSameStages) {
  Case c = even_case(GetParam(), 4);
  c.split = Split::sparse;
  const CaseData data = make_data(c);
  PlayedRanks ranks(c, data, 4, false, staged_options());
  ASSERT_EQ(ranks.complaints(), "");
  ranks.prepare(nullptr);
  ranks.run(nullptr);
  expect_same_bits(ranks.results(nullptr), by_all_gather(c, data, 4));
  EXPECT_EQ(ranks.complaints(), "");
}

std::string decay_name(const testing::TestParamInfo<int32_t> &info) {
  constexpr const char *kNames[] = {"none", "head", "scalar", "channel"};
  return std::string(info.param < kDecayKinds ? "" : "delta_") + kNames[info.param % kDecayKinds];
}
INSTANTIATE_TEST_SUITE_P(Decays, Detached, testing::Range(int32_t{0}, kWrites *kDecayKinds), decay_name);

// The arithmetic of the header, in double.
float apply_documented(float x, float entering, float own) {
  const double s = entering, m = x;
  return static_cast<float>(std::signbit(x) ? s + m * s + own : x != 0 ? m * s + own : double{own});
}

class ExactMaps : public testing::TestWithParam<std::string> {};

// Sums are exact in these cases, and so the order in which maps are composed leaves no trace.
TEST_P(ExactMaps, ComposeAsATree) {
  if (on_cuda()) GTEST_SKIP() << "the maps are folded on the host";
  constexpr int32_t kRanks = 5;
  const Case &c = case_named(GetParam());
  const CaseData &data = cached_data(c);
  PlayedRanks ranks(c, data, kRanks, false, staged_options());
  ASSERT_EQ(ranks.complaints(), "");
  const lasp_plan_info &info = ranks.info(0);
  std::string complaints;
  // The map of positions [first, end), halves first; a position is a rank counted in the direction's order.
  using Map = std::unique_ptr<GuardedBuffer>;
  const std::function<Map(const uint8_t *, bool, int32_t, int32_t)> tree = [&](const uint8_t *maps, bool backward,
                                                                               int32_t first, int32_t end) {
    auto map = std::make_unique<GuardedBuffer>(info.map_bytes, info.alignment);
    if (end - first == 1) {
      std::memcpy(map->data(), maps + (backward ? kRanks - 1 - first : first) * info.map_bytes, info.map_bytes);
      return map;
    }
    const int32_t middle = (first + end) / 2;
    const Map earlier = tree(maps, backward, first, middle), later = tree(maps, backward, middle, end);
    lasp_maps_args args = LASP_MAPS_ARGS_INIT;
    args.later = whole_const(later), args.earlier = whole_const(earlier);
    args.to = whole(first % 3 == 0 ? map : first % 3 == 1 ? later : earlier);  // in place, too
    if (lasp_maps_compose(ranks.plan(0), &args, nullptr) != LASP_OK) complaints += lasp_last_error();
    std::memmove(map->data(), args.to.data, info.map_bytes);
    if (!map->canaries_intact() || !later->canaries_intact() || !earlier->canaries_intact())
      complaints += "lasp_maps_compose wrote outside a map\n";
    return map;
  };
  ranks.prepare(nullptr);
  ranks.run(nullptr, [&](int32_t rank, bool backward, const uint8_t *maps, float *incoming) {
    const int32_t position = backward ? kRanks - 1 - rank : rank;
    if (position == 0) return void(std::memset(incoming, 0, ranks.state_bytes()));
    std::memcpy(incoming, tree(maps, backward, 0, position)->data(), ranks.state_bytes());
  });
  EXPECT_EQ(complaints, "");
  expect_same_bits(ranks.results(nullptr), by_all_gather(c, data, kRanks), c.decay != LASP_DECAY_HEAD);
  EXPECT_EQ(ranks.complaints(), "");
}

TEST_P(ExactMaps, AreAppliedAsTheHeaderSays) {
  if (on_cuda()) GTEST_SKIP() << "the maps are folded on the host";
  constexpr int32_t kRanks = 4;
  const Case &c = case_named(GetParam());
  const CaseData &data = cached_data(c);
  PlayedRanks ranks(c, data, kRanks, false, staged_options());
  ASSERT_EQ(ranks.complaints(), "");
  const lasp_plan_info &info = ranks.info(0);
  const size_t floats = ranks.state_bytes() / sizeof(float);
  const bool dense = info.transition == LASP_TRANSITION_DENSE;
  const auto keys = static_cast<size_t>(c.head_dim_k), values = static_cast<size_t>(c.head_dim_v);
  const size_t factors = static_cast<size_t>(c.batch * c.heads()) *
                         (info.transition == LASP_TRANSITION_DIAGONAL ? static_cast<size_t>(c.head_dim_k) : 1);
  ranks.prepare(nullptr);
  ranks.run(nullptr, [&](int32_t rank, bool backward, const uint8_t *maps, float *incoming) {
    std::fill_n(incoming, floats, 0.0f);
    const int32_t position = backward ? kRanks - 1 - rank : rank;
    for (int32_t i = 0; i < position; ++i) {
      const uint8_t *const map = maps + (backward ? kRanks - 1 - i : i) * info.map_bytes;
      const auto *const state = reinterpret_cast<const float *>(map);
      const auto *const transition = reinterpret_cast<const float *>(map + info.map_transition_offset);
      if (dense) {
        const std::vector<float> entering(incoming, incoming + floats);
        for (size_t at = 0; at < floats; ++at) {
          const size_t row = at / values, head = row / keys;
          double sum = state[at];
          for (size_t j = 0; j < keys; ++j)
            sum += double{transition[row * keys + j]} * entering[(head * keys + j) * values + at % values];
          incoming[at] = static_cast<float>(sum);
        }
        continue;
      }
      for (size_t at = 0; at < floats; ++at) {
        const float x = info.transition == LASP_TRANSITION_IDENTITY ? -0.0f : transition[at / (floats / factors)];
        incoming[at] = apply_documented(x, incoming[at], state[at]);
      }
    }
  });
  expect_same_bits(ranks.results(nullptr), by_all_gather(c, data, kRanks), c.decay != LASP_DECAY_HEAD);
  EXPECT_EQ(ranks.complaints(), "");
}

std::vector<std::string> exact_names() {
  std::vector<std::string> names;
  for (const Case &c : all_cases())
    if (c.exact && c.mask == LASP_MASK_CAUSAL) names.push_back(c.name);
  return names;
}
INSTANTIATE_TEST_SUITE_P(Table, ExactMaps, testing::ValuesIn(exact_names()),
                         [](const auto &test) { return test.param; });

// The incoming state of the last of three ranks, after what rank 0 left was `left`.
std::vector<float> fold_after(const Case &c, const CaseData &data, float left, std::vector<float> *unspoilt) {
  PlayedRanks ranks(c, data, 3, false, staged_options());
  EXPECT_EQ(ranks.complaints(), "");
  std::vector<float> found(ranks.state_bytes() / sizeof(float));
  ranks.prepare(nullptr);
  ranks.run(nullptr, [&](int32_t rank, bool backward, const uint8_t *maps, float *incoming) {
    GuardedBuffer all(3 * ranks.info(0).map_bytes, ranks.info(0).alignment);
    std::memcpy(all.data(), maps, all.bytes());
    lasp_maps_args args = LASP_MAPS_ARGS_INIT;
    args.maps = {all.data(), all.bytes()};
    args.incoming = {incoming, ranks.state_bytes()};
    args.backward = backward ? 1 : 0;
    EXPECT_EQ(lasp_maps_apply(ranks.plan(rank), &args, nullptr), LASP_OK) << lasp_last_error();
    if (backward || rank != 2) return;
    unspoilt->assign(incoming, incoming + found.size());
    std::fill_n(reinterpret_cast<float *>(all.data()), found.size(), left);
    args.incoming = {found.data(), ranks.state_bytes()};
    EXPECT_EQ(lasp_maps_apply(ranks.plan(rank), &args, nullptr), LASP_OK) << lasp_last_error();
  });
  EXPECT_EQ(ranks.complaints(), "");
  return found;
}

// Rank 1 begins a sequence, or decays everything: of a state that was no number nothing is left.
TEST(Maps, WhatIsForgottenDoesNotPass) {
  if (on_cuda()) GTEST_SKIP() << "the maps are folded on the host";
  for (int32_t kind = 0; kind < kWrites * kDecayKinds; ++kind) {
    for (const bool packed : {true, false}) {
      if (kind % kDecayKinds == LASP_DECAY_NONE && !packed) continue;
      SCOPED_TRACE(testing::Message() << "kind " << kind << (packed ? ", packed" : ", strong"));
      Case c = even_case(kind, 3);
      c.batch = 1;
      if (packed) c.cu_seqlens = {0, 60, c.tokens};
      if (!packed) c.constant_decay = -200;
      for (const float left : {kNan, kInfinity}) {
        std::vector<float> unspoilt;
        const std::vector<float> found = fold_after(c, make_data(c), left, &unspoilt);
        EXPECT_EQ(std::memcmp(found.data(), unspoilt.data(), 4 * found.size()), 0);
        EXPECT_TRUE(std::isfinite(found[0]));
      }
    }
  }
}

// And where it is not forgotten, it shows.
TEST(Maps, WhatIsKeptPasses) {
  if (on_cuda()) GTEST_SKIP() << "the maps are folded on the host";
  for (int32_t kind = 0; kind < kWrites * kDecayKinds; ++kind) {
    const Case c = even_case(kind, 3);
    std::vector<float> unspoilt;
    for (const float x : fold_after(c, make_data(c), kNan, &unspoilt)) ASSERT_TRUE(std::isnan(x)) << kind;
  }
}

// So that a checksum, or a tool that looks for memory nobody wrote, may look at all of a map.
TEST(Maps, AreWholeWithTheirPadding) {
  const Case c = even_case(LASP_DECAY_SCALAR, 3);
  const CaseData data = make_data(c);
  PlayedRanks ranks(c, data, 3, true, staged_options());
  ASSERT_EQ(ranks.complaints(), "");
  ranks.prepare(nullptr);
  ranks.run(nullptr);
  ranks.results(nullptr);
  const lasp_plan_info &info = ranks.info(0);
  const uint64_t used = info.map_transition_offset + static_cast<uint64_t>(c.batch * c.heads()) * sizeof(float);
  ASSERT_LT(used, info.map_bytes);
  for (int32_t rank = 0; rank < 3; ++rank)
    for (uint64_t i = used; i < info.map_bytes; ++i)
      ASSERT_EQ(ranks.maps()[static_cast<uint64_t>(rank) * info.map_bytes + i], 0) << "byte " << i;
}

// A positive log decay makes states grow; the maps hold that.
TEST(Maps, HoldFactorsAboveOne) {
  for (int32_t decay = LASP_DECAY_HEAD; decay <= LASP_DECAY_CHANNEL; ++decay) {
    Case c = even_case(decay, 3);
    c.constant_decay = 0.01;
    const CaseData data = make_data(c);
    PlayedRanks ranks(c, data, 3, true, staged_options());
    ASSERT_EQ(ranks.complaints(), "");
    ranks.prepare(nullptr);
    ranks.run(nullptr);
    const Outputs whole = by_all_gather(c, data, 3);
    expect_same_bits(ranks.results(nullptr), whole);
    EXPECT_EQ(compare(c, expected_of(c, data), whole), "");
    // exp(0.41) after 41 tokens, from the decay of one head in the last map.
    const lasp_plan_info &info = ranks.info(0);
    const float *const map = reinterpret_cast<const float *>(ranks.maps() + info.map_transition_offset);
    EXPECT_FLOAT_EQ(*map, std::exp(0.41f));
  }
}

}  // namespace
}  // namespace lasp_test
