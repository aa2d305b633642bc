// For the tests of affine maps: a map with its memory, drawn at random, and the same as matrices of double.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <random>
#include <vector>

#include "core/affine_map.h"
#include "core/decay.h"

namespace lasp {

inline constexpr Transition kTransitions[] = {Transition::kIdentity, Transition::kHead, Transition::kScalar,
                                              Transition::kDiagonal, Transition::kDense};
inline const char *name_of(Transition kind) {
  constexpr const char *kNames[] = {"identity", "head", "scalar", "diagonal", "dense"};
  return kNames[static_cast<int>(kind)];
}

// What nobody wrote is NaN, and so is whatever is made of it.
struct OwnedMap {
  AffineMap kind;
  std::vector<float> floats;

  explicit OwnedMap(const AffineMap &map) : kind(map), floats(static_cast<size_t>(map.floats()), NAN) {}
  AffineMapView view() { return kind.view(floats.data()); }
  float *state() { return view().state; }
  float *transition() { return view().transition; }
};

class DrawMaps {
 public:
  // Small whole numbers, and decays 0, 1/2 and 1: whatever few maps make of them is exact in float32.
  void whole(OwnedMap &map) {
    for (float &x : map.floats) x = static_cast<float>(integer_(random_));
    constexpr float kExact[] = {kForgetsAll, 0.5f, kKeepsAll};
    float *const transition = map.transition();
    for (int64_t i = 0; i < map.kind.transition_floats(); ++i)
      transition[i] = map.kind.kind == Transition::kDense ? static_cast<float>(integer_(random_) % 2)
                                                          : kExact[std::abs(integer_(random_)) % 3];
  }
  // As data makes them: states and dense transitions in [-1, 1], decays in [0, 1].
  void real(OwnedMap &map) {
    for (float &x : map.floats) x = unit_(random_);
    float *const transition = map.transition();
    for (int64_t i = 0; map.kind.kind != Transition::kDense && i < map.kind.transition_floats(); ++i)
      transition[i] = decay_code(-2 * std::abs(double{unit_(random_)}));
  }
  float number() { return unit_(random_); }

 private:
  std::mt19937_64 random_{20260};
  std::uniform_int_distribution<int> integer_{-3, 3};
  std::uniform_real_distribution<float> unit_{-1, 1};
};

// Row-major.
struct Matrix {
  int64_t rows, cols;
  std::vector<double> at;

  Matrix(int64_t r, int64_t c) : rows(r), cols(c), at(static_cast<size_t>(r * c), 0.0) {}
  double &operator()(int64_t r, int64_t c) { return at[static_cast<size_t>(r * cols + c)]; }
  double operator()(int64_t r, int64_t c) const { return at[static_cast<size_t>(r * cols + c)]; }
};

inline Matrix operator*(const Matrix &a, const Matrix &b) {
  Matrix product(a.rows, b.cols);
  for (int64_t r = 0; r < a.rows; ++r)
    for (int64_t i = 0; i < a.cols; ++i)
      for (int64_t c = 0; c < b.cols; ++c) product(r, c) += a(r, i) * b(i, c);
  return product;
}
inline Matrix operator+(Matrix a, const Matrix &b) {
  for (size_t i = 0; i < a.at.size(); ++i) a.at[i] += b.at[i];
  return a;
}
inline Matrix operator*(double by, Matrix a) {
  for (double &x : a.at) x *= by;
  return a;
}
inline Matrix abs(Matrix a) {
  for (double &x : a.at) x = std::abs(x);
  return a;
}

// M and S of one row and head, counted together; any kind of M is a matrix.
inline Matrix transition_of(OwnedMap &map, int64_t row_head) {
  const AffineMap &kind = map.kind;
  const int64_t keys = kind.head_dim_k;
  Matrix m(keys, keys);
  for (int64_t i = 0; i < keys; ++i)
    for (int64_t j = 0; j < keys; ++j) {
      const float *const t = map.transition();
      switch (kind.kind) {
        case Transition::kDense: m(i, j) = t[(row_head * keys + i) * keys + j]; break;
        case Transition::kDiagonal: m(i, j) = i == j ? decay_value(t[row_head * keys + i]) : 0; break;
        default: m(i, j) = i == j ? decay_value(t[row_head]) : 0;
      }
    }
  return m;
}
inline Matrix state_of(const AffineMap &kind, const float *state, int64_t row_head) {
  Matrix s(kind.head_dim_k, kind.head_dim_v);
  for (size_t i = 0; i < s.at.size(); ++i) s.at[i] = state[static_cast<size_t>(row_head) * s.at.size() + i];
  return s;
}

}  // namespace lasp
