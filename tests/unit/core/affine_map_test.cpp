// Affine maps of every kind: sizes, what is known without data, identity, composition and application, and cuts.
#include "core/affine_map.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <limits>

#include "unit/core/owned_map.h"
#include "unit/decays.h"

namespace lasp {
namespace {

constexpr int64_t kRows = 2, kHeads = 3, kKeys = 4, kValues = 5;

AffineMap shape(Transition kind) { return {kind, kRows, kHeads, kKeys, kValues}; }

TEST(AffineMap, HasTheSizesOfItsKind) {
  const std::array<int64_t, 5> transition = {6, 6, 6, 24, 96}, slices = {24, 24, 24, 24, 6};
  for (const Transition kind : kTransitions) {
    const auto i = static_cast<size_t>(kind);
    const AffineMap map = shape(kind);
    EXPECT_EQ(map.state_floats(), 120);
    EXPECT_EQ(map.transition_floats(), transition[i]) << name_of(kind);
    EXPECT_EQ(map.floats(), 120 + transition[i]);
    OwnedMap owned(map);
    EXPECT_EQ(owned.transition(), owned.state() + 120) << "[state | transition]";
    EXPECT_EQ(map.slices(), slices[i]) << name_of(kind);
    EXPECT_EQ(map.slices() * map.slice_floats(), map.state_floats());
    EXPECT_EQ(map.is_known(), kind == Transition::kIdentity || kind == Transition::kHead) << name_of(kind);
    EXPECT_EQ(map.may_cut(Axis::kKeys), kind != Transition::kDense);
    EXPECT_TRUE(map.may_cut(Axis::kHeads) && map.may_cut(Axis::kValues));
  }
}

TEST(AffineMap, FollowsFromTheProblem) {
  Problem problem;
  problem.batch = kRows, problem.heads = kHeads, problem.head_dim_k = kKeys, problem.head_dim_v = kValues;
  for (size_t i = 0; i < std::size(kDecays); ++i) {
    problem.decay = kDecays[i];
    const AffineMap map = affine_map_of(problem);
    EXPECT_EQ(map.kind, kTransitions[i]);
    EXPECT_EQ(map.floats(), shape(kTransitions[i]).floats());
  }
}

TEST(AffineMap, PiecesFollowOneAnotherFromEndToEnd) {
  for (const Transition kind : kTransitions) {
    const AffineMap map = shape(kind);
    for (int32_t pieces = 1; pieces <= map.slices(); ++pieces) {
      int64_t end = 0;
      for (int32_t i = 0; i < pieces; ++i) {
        const Slices piece = map.piece(i, pieces);
        EXPECT_EQ(piece.begin, end);
        EXPECT_GE(piece.end - piece.begin, map.slices() / pieces);
        EXPECT_LE(piece.end - piece.begin, map.slices() / pieces + 1);
        end = piece.end;
      }
      EXPECT_EQ(end, map.slices()) << name_of(kind) << " in " << pieces;
    }
  }
}

// What all ranks can work out is the composition of what each of them is: here of runs of 0, 3 and 1 tokens.
TEST(AffineMap, KnownTransitionIsThatOfTheWholeRun) {
  const float log_decay[kHeads] = {-0.7f, -0.001f, 0.0f};
  for (const Transition kind : {Transition::kIdentity, Transition::kHead}) {
    const AffineMap map = shape(kind);
    const auto known = [&](KnownTransition run) {
      std::vector<float> to(static_cast<size_t>(map.transition_floats()), NAN);
      map.fill_known_transition(to.data(), run, kind == Transition::kHead ? log_decay : nullptr);
      return to;
    };
    std::vector<float> all = known({false, 0});
    for (const float code : all) EXPECT_TRUE(code == 0 && std::signbit(code)) << "without tokens: the identity";
    for (const int64_t tokens : {3, 1})
      map.compose_transitions(all.data(), known({false, tokens}).data(), all.data());
    const std::vector<float> whole = known({false, 4});
    for (size_t i = 0; i < all.size(); ++i) {
      const double decay = kind == Transition::kHead ? std::exp(4 * double{log_decay[i % kHeads]}) : 1;
      EXPECT_NEAR(decay_value(whole[i]), decay, decay * 0x1p-24) << i;
      EXPECT_NEAR(decay_value(all[i]), decay, 3.001 * decay * 0x1p-24) << i << ": two factors and their product";
    }
    for (const float code : known({true, 4})) EXPECT_TRUE(forgets_all(code)) << "a reset";
  }
}

class EveryKind : public testing::TestWithParam<Transition> {
 protected:
  OwnedMap whole() {
    OwnedMap map(kind);
    draw.whole(map);
    return map;
  }
  OwnedMap real() {
    OwnedMap map(kind);
    draw.real(map);
    return map;
  }
  OwnedMap composed(OwnedMap &later, OwnedMap &earlier) {
    OwnedMap to(kind);
    kind.compose(to.view(), later.view(), earlier.view(), kind.all());
    return to;
  }
  std::vector<float> applied(OwnedMap &map, const float *state) {
    std::vector<float> to(static_cast<size_t>(kind.state_floats()), NAN);
    kind.apply(to.data(), map.view(), state, kind.all());
    return to;
  }

  AffineMap kind = shape(GetParam());
  DrawMaps draw;
};

// M = M_l M_e and S = M_l S_e + S_l, and S_out = M S_in + S: sums of whole numbers, halves and quarters are exact.
TEST_P(EveryKind, ComposesAndAppliesAsMatrices) {
  for (int round = 0; round < 20; ++round) {
    OwnedMap later = whole(), earlier = whole(), both = composed(later, earlier);
    const std::vector<float> out = applied(later, earlier.state());
    for (int64_t n = 0; n < kRows * kHeads; ++n) {
      const Matrix m = transition_of(later, n);
      const Matrix state = m * state_of(kind, earlier.state(), n) + state_of(kind, later.state(), n);
      EXPECT_EQ(transition_of(both, n).at, (m * transition_of(earlier, n)).at);
      EXPECT_EQ(state_of(kind, both.state(), n).at, state.at);
      EXPECT_EQ(state_of(kind, out.data(), n).at, state.at);
    }
  }
}

TEST_P(EveryKind, ComposesInPlaceOfTheLaterMap) {
  OwnedMap later = real(), earlier = real(), wanted = composed(later, earlier), in_place = later, state = later;
  kind.compose(in_place.view(), in_place.view(), earlier.view(), kind.all());
  EXPECT_EQ(in_place.floats, wanted.floats);
  kind.compose({state.state(), nullptr}, state.view(), earlier.view(), kind.all());
  EXPECT_TRUE(std::equal(state.state(), state.transition(), wanted.state()));
  EXPECT_TRUE(std::equal(state.transition(), state.transition() + kind.transition_floats(), later.transition()))
      << "a transition that nobody wants";
}

TEST_P(EveryKind, IdentityChangesNothing) {
  OwnedMap map = real(), identity(kind);
  kind.set_identity(identity.view());
  EXPECT_EQ(composed(identity, map).floats, map.floats);
  EXPECT_EQ(composed(map, identity).floats, map.floats);
  EXPECT_TRUE(std::equal(map.state(), map.transition(), applied(identity, map.state()).begin()));
}

// One sequence must not spoil the next one, nor a channel another.
TEST_P(EveryKind, AResetForgetsWhatIsInfinite) {
  OwnedMap reset = real(), identity(kind);
  kind.set_identity(identity.view());
  std::fill_n(reset.transition(), kind.transition_floats(), 0.0f);
  for (const float worst : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    std::vector<float> state(static_cast<size_t>(kind.state_floats()), 1.0f);
    for (size_t i = 0; i < state.size(); i += kKeys * kValues) state[i] = worst;
    EXPECT_TRUE(std::equal(reset.state(), reset.transition(), applied(reset, state.data()).begin())) << worst;
    const std::vector<float> through = applied(identity, state.data());
    for (size_t i = 0; i < state.size(); ++i) EXPECT_EQ(std::isfinite(through[i]), std::isfinite(state[i])) << i;
  }
}

// Every number is a sum in double, wrong by (K + 2) 2^-53 of the sum of its terms' sizes at most, rounded once: by
// 2^-24 of itself. Sums in float32 would be wrong by up to K times that.
TEST_P(EveryKind, RoundsOnce) {
  for (int round = 0; round < 50; ++round) {
    OwnedMap later = real(), earlier = real(), both = composed(later, earlier);
    const auto expect = [](const Matrix &got, const Matrix &exact, const Matrix &sizes) {
      for (size_t i = 0; i < got.at.size(); ++i)
        EXPECT_LE(std::abs(got.at[i] - exact.at[i]),
                  0x1p-24 * std::abs(exact.at[i]) + (kKeys + 2) * 0x1p-53 * sizes.at[i]);
    };
    for (int64_t n = 0; n < kRows * kHeads; ++n) {
      const Matrix m = transition_of(later, n), me = transition_of(earlier, n);
      const Matrix s = state_of(kind, later.state(), n), se = state_of(kind, earlier.state(), n);
      expect(transition_of(both, n), m * me, abs(m) * abs(me));
      expect(state_of(kind, both.state(), n), m * se + s, abs(m) * abs(se) + abs(s));
    }
  }
}

// With A, B and C from later to earlier, |.| of each entry, and r = 2^-24 + (K + 2) 2^-53: an entry of a
// composition is wrong by r times the sum of its terms' sizes at most, as above. Let D be |A| |B| |C|. In (AB)C, AB
// is wrong by r |A| |B|, of which C makes r D, and the second product adds r (1 + r) D. A(BC) likewise. So both lie
// within r (2 + r) D of the exact map, and within 2 r (2 + r) D of one another. For states the same holds with D =
// |A| (|B| |C_S| + |B_S|) + |A_S|.
TEST_P(EveryKind, IsAssociativeToItsRounding) {
  constexpr double kRound = 0x1p-24 + (kKeys + 2) * 0x1p-53, kBound = 2 * kRound * (2 + kRound);
  for (int round = 0; round < 50; ++round) {
    OwnedMap a = real(), b = real(), c = real();
    OwnedMap ab = composed(a, b), bc = composed(b, c), left = composed(ab, c), right = composed(a, bc);
    for (int64_t n = 0; n < kRows * kHeads; ++n) {
      const Matrix am = abs(transition_of(a, n)), bm = abs(transition_of(b, n)), cm = abs(transition_of(c, n));
      const auto size_of_state = [&](OwnedMap &map) { return abs(state_of(kind, map.state(), n)); };
      const Matrix transition = am * (bm * cm);
      const Matrix state = am * (bm * size_of_state(c) + size_of_state(b)) + size_of_state(a);
      const Matrix dm = transition_of(left, n) + -1 * transition_of(right, n);
      const Matrix ds = state_of(kind, left.state(), n) + -1 * state_of(kind, right.state(), n);
      for (size_t i = 0; i < dm.at.size(); ++i) EXPECT_LE(std::abs(dm.at[i]), kBound * transition.at[i]) << i;
      for (size_t i = 0; i < ds.at.size(); ++i) EXPECT_LE(std::abs(ds.at[i]), kBound * state.at[i]) << i;
    }
  }
}

// In place, so that no slice may be composed twice.
TEST_P(EveryKind, PiecesComposedByThemselvesAreTheWhole) {
  OwnedMap later = real(), earlier = real(), wanted = composed(later, earlier);
  for (int32_t pieces = 1; pieces <= kind.slices(); ++pieces) {
    OwnedMap to = later;
    for (int32_t i = 0; i < pieces; ++i)
      kind.compose({to.state(), nullptr}, to.view(), earlier.view(), kind.piece(i, pieces));
    EXPECT_TRUE(std::equal(to.state(), to.transition(), wanted.state())) << pieces << " pieces";
  }
}

int64_t &length_along(AffineMap &map, Axis axis) {
  return axis == Axis::kHeads ? map.heads : axis == Axis::kKeys ? map.head_dim_k : map.head_dim_v;
}

// Calls visit(whole's float, part's float) for all that the part [begin, begin + its length) of an axis has.
template <class Visit>
void for_each_shared(OwnedMap &whole, OwnedMap &part, Axis axis, int64_t begin, Visit visit) {
  const AffineMap &w = whole.kind, &p = part.kind;
  const auto at = [&](Axis of) { return axis == of ? begin : 0; };
  for (int64_t row = 0; row < p.rows; ++row)
    for (int64_t h = 0; h < p.heads; ++h) {
      const int64_t head = row * p.heads + h, from = row * w.heads + h + at(Axis::kHeads);
      for (int64_t k = 0; k < p.head_dim_k; ++k)
        for (int64_t v = 0; v < p.head_dim_v; ++v)
          visit(whole.state()[(from * w.head_dim_k + k + at(Axis::kKeys)) * w.head_dim_v + v + at(Axis::kValues)],
                part.state()[(head * p.head_dim_k + k) * p.head_dim_v + v]);
      const int64_t per_head = p.head_transition_floats();
      const int64_t skipped = w.kind == Transition::kDiagonal ? at(Axis::kKeys) : 0;
      for (int64_t i = 0; i < per_head; ++i)
        visit(whole.transition()[from * w.head_transition_floats() + i + skipped],
              part.transition()[head * per_head + i]);
    }
}

TEST_P(EveryKind, PartsPutTogetherAreTheWhole) {
  for (const Axis axis : {Axis::kHeads, Axis::kKeys, Axis::kValues}) {
    if (!kind.may_cut(axis)) continue;
    OwnedMap later = real(), earlier = real(), wanted = composed(later, earlier);
    const int64_t length = length_along(kind, axis);
    for (int64_t edge = 1; edge < length; ++edge) {
      OwnedMap together(kind);
      for (const auto &[begin, end] : {std::pair{int64_t{0}, edge}, {edge, length}}) {
        AffineMap cut = kind;
        length_along(cut, axis) = end - begin;
        OwnedMap l(cut), e(cut), to(cut);
        const auto take = [](float &from, float &part) { part = from; };
        for_each_shared(later, l, axis, begin, take);
        for_each_shared(earlier, e, axis, begin, take);
        cut.compose(to.view(), l.view(), e.view(), cut.all());
        for_each_shared(together, to, axis, begin, [](float &whole, float &part) { whole = part; });
      }
      EXPECT_EQ(together.floats, wanted.floats) << "axis " << static_cast<int>(axis) << " at " << edge;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, EveryKind, testing::ValuesIn(kTransitions),
                         [](const auto &which) { return name_of(which.param); });

}  // namespace
}  // namespace lasp
