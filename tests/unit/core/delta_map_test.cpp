// The delta rule as dense maps. A token decays the state and then replaces what it holds for the token's key:
//
//     S <- D S + beta k (v - k^T D S)^T        D = diag(e^g), so M = (I - beta k k^T) D and its own state beta k
//     v^T
//
// Maps of tokens, and maps of chunks walked token by token in float64, are composed in float32 and held against the
// recurrence over all tokens in float64.
#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "unit/core/owned_map.h"

namespace lasp {
namespace {

constexpr int64_t kKeys = 8, kValues = 6, kTokens = 96;
constexpr AffineMap kMap{Transition::kDense, 1, 1, kKeys, kValues};

struct Token {
  std::vector<double> k, v, g;
  double beta;
};

enum class Gate { kNone, kToken, kChannel };  // DeltaNet, Gated DeltaNet, Kimi Delta Attention

std::vector<Token> draw_tokens(Gate gate) {
  DrawMaps draw;
  std::vector<Token> tokens;
  const auto vector = [&](int64_t n) {
    std::vector<double> x(static_cast<size_t>(n));
    for (double &value : x) value = draw.number();
    return x;
  };
  for (int64_t t = 0; t < kTokens; ++t) {
    Token token{vector(kKeys), vector(kValues), std::vector<double>(kKeys, 0.0), 1.0 + draw.number()};
    double norm = 0;
    for (const double x : token.k) norm += x * x;
    for (double &x : token.k) x /= std::sqrt(norm);
    for (size_t c = 0; c < token.g.size() && gate != Gate::kNone; ++c)
      token.g[c] = gate == Gate::kToken && c > 0 ? token.g[0] : -0.3 * std::abs(double{draw.number()});
    if (t % 7 == 0) token.beta = 0;
    tokens.push_back(std::move(token));
  }
  return tokens;
}

// The recurrence over tokens [begin, end), on as many columns as the state has. Columns beyond V are given no v:
// what becomes of the identity there is M.
Matrix walk(const std::vector<Token> &tokens, int64_t begin, int64_t end, Matrix state) {
  for (int64_t t = begin; t < end; ++t) {
    const Token &token = tokens[static_cast<size_t>(t)];
    for (int64_t c = 0; c < state.cols; ++c) {
      double held = 0;
      for (int64_t i = 0; i < kKeys; ++i) {
        state(i, c) *= std::exp(token.g[static_cast<size_t>(i)]);
        held += token.k[static_cast<size_t>(i)] * state(i, c);
      }
      const double wanted = c < kValues ? token.v[static_cast<size_t>(c)] : 0.0;
      for (int64_t i = 0; i < kKeys; ++i)
        state(i, c) += token.beta * token.k[static_cast<size_t>(i)] * (wanted - held);
    }
  }
  return state;
}

// [0 | I]
Matrix identity_columns() {
  Matrix x(kKeys, kValues + kKeys);
  for (int64_t i = 0; i < kKeys; ++i) x(i, kValues + i) = 1;
  return x;
}

// [S | M] of a map, and the map of such columns, each number rounded to float32.
Matrix columns_of(OwnedMap &map) {
  Matrix x(kKeys, kValues + kKeys);
  const Matrix s = state_of(kMap, map.state(), 0), m = transition_of(map, 0);
  for (int64_t i = 0; i < kKeys; ++i)
    for (int64_t c = 0; c < x.cols; ++c) x(i, c) = c < kValues ? s(i, c) : m(i, c - kValues);
  return x;
}
OwnedMap map_of(const Matrix &columns) {
  OwnedMap map(kMap);
  for (int64_t i = 0; i < kKeys; ++i)
    for (int64_t c = 0; c < columns.cols; ++c)
      (c < kValues ? map.state()[i * kValues + c] : map.transition()[i * kKeys + c - kValues]) =
          static_cast<float>(columns(i, c));
  return map;
}

// How wrong each number may be after one more map. With X the exact columns, E how wrong they may be, M and P the
// map and u = 2^-24: M and P were rounded, which makes u (|M| (|X| + E) + |P|); M hands on |M| E, and the result is
// rounded, u times what it may be at most: 2 u (|M| (|X| + E) + |P|) + |M| E. The squares of u and the sums in
// double are 1e-7 of that, and covered by 2.01.
struct Composed {
  Matrix exact, error;
};
Composed after(const Composed &before, const Matrix &chunk, const Matrix &exact) {
  Matrix m(kKeys, kKeys), p(kKeys, exact.cols);
  for (int64_t i = 0; i < kKeys; ++i) {
    for (int64_t j = 0; j < kKeys; ++j) m(i, j) = std::abs(chunk(i, kValues + j));
    for (int64_t c = 0; c < std::min(kValues, exact.cols); ++c) p(i, c) = std::abs(chunk(i, c));
  }
  return {exact, 2.01 * 0x1p-24 * (m * (abs(before.exact) + before.error) + p) + m * before.error};
}

void expect_within(const Matrix &got, const Composed &wanted, const char *what) {
  for (size_t i = 0; i < got.at.size(); ++i)
    EXPECT_LE(std::abs(got.at[i] - wanted.exact.at[i]), wanted.error.at[i] + 1e-13) << what << " " << i;
}

class DeltaMap : public testing::TestWithParam<Gate> {};

// Runs as ranks hold them: one token each, then chunks of 32, then uneven ones with an empty rank among them.
TEST_P(DeltaMap, OfRunsOfTokensIsTheRecurrence) {
  const std::vector<Token> tokens = draw_tokens(GetParam());
  std::vector<int64_t> single, chunks = {0, 32, 64, kTokens}, uneven = {0, 1, 40, 40, 93, kTokens};
  for (int64_t t = 0; t <= kTokens; ++t) single.push_back(t);
  DrawMaps draw;
  std::vector<float> first(static_cast<size_t>(kMap.state_floats()));
  for (float &x : first) x = draw.number();
  for (const std::vector<int64_t> &cut : {single, chunks, uneven}) {
    OwnedMap all(kMap);
    kMap.set_identity(all.view());
    std::vector<float> state = first;
    Composed map{identity_columns(), Matrix(kKeys, kValues + kKeys)};
    Composed passed{state_of(kMap, first.data(), 0), Matrix(kKeys, kValues)};
    for (size_t i = 0; i + 1 < cut.size(); ++i) {
      const Matrix chunk = walk(tokens, cut[i], cut[i + 1], identity_columns());
      OwnedMap run = map_of(chunk);
      kMap.compose(run.view(), run.view(), all.view(), kMap.all());
      all = run;
      map = after(map, chunk, walk(tokens, cut[i], cut[i + 1], map.exact));
      run = map_of(chunk);
      kMap.apply(run.state(), run.view(), state.data(), kMap.all());
      state.assign(run.state(), run.transition());
      passed = after(passed, chunk, walk(tokens, cut[i], cut[i + 1], passed.exact));
    }
    expect_within(columns_of(all), map, "maps composed");
    expect_within(state_of(kMap, state.data(), 0), passed, "a state passed on");
    std::vector<float> at_once(state.size());
    kMap.apply(at_once.data(), all.view(), first.data(), kMap.all());
    const Matrix exact = walk(tokens, 0, kTokens, state_of(kMap, first.data(), 0));
    // The composed map's own errors, and two roundings more.
    Matrix s(kKeys, kValues), m(kKeys, kKeys), es = s, em = m;
    for (int64_t i = 0; i < kKeys; ++i)
      for (int64_t c = 0; c < kValues + kKeys; ++c) {
        (c < kValues ? s(i, c) : m(i, c - kValues)) = std::abs(map.exact(i, c));
        (c < kValues ? es(i, c) : em(i, c - kValues)) = map.error(i, c);
      }
    const Matrix entering = abs(state_of(kMap, first.data(), 0));
    expect_within(state_of(kMap, at_once.data(), 0),
                  {exact, em * entering + es + 2.01 * 0x1p-24 * (m * entering + s)}, "all at once");
  }
}

// The bound above would hold for nothing if maps lost what they carry: a decayed state is still there at the end.
TEST_P(DeltaMap, MixesTheKeys) {
  const Matrix chunk = walk(draw_tokens(GetParam()), 0, 8, identity_columns());
  double off_diagonal = 0;
  for (int64_t i = 0; i < kKeys; ++i)
    for (int64_t j = 0; j < kKeys; ++j)
      if (i != j) off_diagonal = std::max(off_diagonal, std::abs(chunk(i, kValues + j)));
  EXPECT_GT(off_diagonal, 0.05) << "no kind but kDense holds this";
}

INSTANTIATE_TEST_SUITE_P(All, DeltaMap, testing::Values(Gate::kNone, Gate::kToken, Gate::kChannel));

}  // namespace
}  // namespace lasp
