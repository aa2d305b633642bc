// How the CPU backend composes maps between the messages of an exchange, held to what AffineMap says: the same
// where numbers are exact, and to the rounding of its float32 arithmetic elsewhere.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "base/thread_pool.h"
#include "cpu/cpu_backend.h"
#include "unit/core/owned_map.h"
#include "unit/decays.h"

namespace lasp {
namespace {

class CpuComposer : public testing::TestWithParam<Decay> {
 protected:
  CpuComposer() {
    Problem problem;
    problem.batch = 2, problem.tokens = 3;
    problem.heads_q = problem.heads_k = problem.heads_v = problem.heads = 3;
    problem.head_dim_k = 8, problem.head_dim_v = 16;
    problem.decay = GetParam();
    kind = affine_map_of(problem);
    backend = make_cpu_backend(problem, make_token_partition(problem, {{0, 3}}, 0), pool);
  }
  OwnedMap drawn(void (DrawMaps::*how)(OwnedMap &)) {
    OwnedMap map(kind);
    (draw.*how)(map);
    return map;
  }
  void compose(AffineMapView to, AffineMapView later, AffineMapView earlier, Slices part) {
    backend->compose(nullptr, to, {&later, 1}, earlier, part.begin, part.end);
  }

  ThreadPool pool{2};
  AffineMap kind;
  std::unique_ptr<Backend> backend;
  DrawMaps draw;
};

TEST_P(CpuComposer, IsTheMapsOwnWhereNumbersAreExact) {
  for (int32_t pieces = 1; pieces <= kind.slices(); pieces += 5) {
    OwnedMap later = drawn(&DrawMaps::whole), earlier = drawn(&DrawMaps::whole), wanted(kind), to(kind);
    kind.compose(wanted.view(), later.view(), earlier.view(), kind.all());
    compose(to.view(), later.view(), earlier.view(), kind.all());
    EXPECT_EQ(to.floats, wanted.floats);
    for (int32_t i = 0; i < pieces; ++i)  // in place, so that none may be composed twice
      compose({later.state(), nullptr}, later.view(), earlier.view(), kind.piece(i, pieces));
    EXPECT_TRUE(std::equal(later.state(), later.transition(), wanted.state())) << pieces << " pieces";
  }
}

// to = x + (c x + y) for the code c of a weak decay, three roundings each of a number below |x| + |y| to its first
// order; AffineMap rounds once. Transitions are the same code of the same product.
TEST_P(CpuComposer, IsTheMapsOwnToItsRounding) {
  OwnedMap later = drawn(&DrawMaps::real), earlier = drawn(&DrawMaps::real), wanted(kind), to(kind);
  kind.compose(wanted.view(), later.view(), earlier.view(), kind.all());
  compose(to.view(), later.view(), earlier.view(), kind.all());
  for (int64_t i = 0; i < kind.state_floats(); ++i)
    EXPECT_NEAR(to.state()[i], wanted.state()[i],
                4.001 * 0x1p-24 * (std::abs(earlier.state()[i]) + std::abs(later.state()[i])));
  for (int64_t i = 0; i < kind.transition_floats(); ++i) EXPECT_EQ(to.transition()[i], wanted.transition()[i]) << i;
}

class CpuKnownTransition : public CpuComposer {};

TEST_P(CpuKnownTransition, IsTheMapsOwn) {
  const std::vector<float> log_decay = {-0.5f, -0.001f, 0.0f};
  for (const KnownTransition known : {KnownTransition{false, 0}, {false, 7}, {true, 7}}) {
    OwnedMap to(kind), wanted(kind);
    backend->fill_known_transition(nullptr, to.transition(), known, log_decay.data());
    kind.fill_known_transition(wanted.transition(), known, log_decay.data());
    for (int64_t i = 0; i < kind.transition_floats(); ++i) EXPECT_EQ(to.transition()[i], wanted.transition()[i]);
  }
}

INSTANTIATE_TEST_SUITE_P(All, CpuComposer, testing::ValuesIn(kDecays));
INSTANTIATE_TEST_SUITE_P(All, CpuKnownTransition, testing::Values(Decay::kNone, Decay::kHead));

}  // namespace
}  // namespace lasp
