#include "core/affine_map.h"

#include <algorithm>

#include "core/decay.h"

namespace lasp {
namespace {

Transition transition_of(const Problem &problem) {
  if (problem.delta) return Transition::kDense;
  switch (problem.decay) {
    case Decay::kNone: return Transition::kIdentity;
    case Decay::kHead: return Transition::kHead;
    case Decay::kScalar: return Transition::kScalar;
    case Decay::kChannel: return Transition::kDiagonal;
  }
  return Transition::kIdentity;
}

// to = m x + add; m [size, size], the others [size, cols], add may be null: zero. `to` may be m or add, for a row
// of it is written when that row of theirs has been read. What a zero of m multiplies may be anything, infinite
// too: a reset forgets it, and the identity hands each row on by itself.
void multiply_add(float *to, const float *m, const float *x, const float *add, int64_t size, int64_t cols) {
  double sums[kMaxHeadDim];
  for (int64_t i = 0; i < size; ++i) {
    for (int64_t c = 0; c < cols; ++c) sums[c] = add == nullptr ? 0.0 : double{add[i * cols + c]};
    for (int64_t j = 0; j < size; ++j) {
      const double by = m[i * size + j];
      for (int64_t c = 0; by != 0 && c < cols; ++c) sums[c] += by * double{x[j * cols + c]};
    }
    for (int64_t c = 0; c < cols; ++c) to[i * cols + c] = static_cast<float>(sums[c]);
  }
}

// to = decay x + add. What is forgotten may have been anything here too.
void decay_add(float *to, float code, const float *x, const float *add, int64_t cols) {
  const double decay = decay_value(code);
  for (int64_t c = 0; c < cols; ++c)
    to[c] = forgets_all(code) ? add[c] : static_cast<float>(decay * double{x[c]} + double{add[c]});
}

}  // namespace

AffineMap affine_map_of(const Problem &problem) {
  return {transition_of(problem), problem.map_rows(), problem.heads,
          problem.head_dim_k,     problem.head_dim_v, problem.packed};
}

int64_t AffineMap::head_transition_floats() const {
  switch (kind) {
    case Transition::kDense: return head_dim_k * head_dim_k;
    case Transition::kDiagonal: return head_dim_k;
    default: return 1;
  }
}

void AffineMap::set_identity(const AffineMapView &map) const {
  const bool dense = kind == Transition::kDense;
  std::fill_n(map.state, state_floats(), 0.0f);
  std::fill_n(map.transition, transition_floats(), dense ? 0.0f : kKeepsAll);
  for (int64_t row = 0; dense && row < rows * heads * head_dim_k; ++row)
    map.transition[row * head_dim_k + row % head_dim_k] = 1;
}

void AffineMap::apply(float *to, const AffineMapView &map, const float *state, Slices part) const {
  const int64_t rows_of_decay = head_dim_k / head_transition_floats();
  for (int64_t slice = part.begin; slice < part.end; ++slice) {
    const int64_t at = slice * slice_floats();
    if (kind == Transition::kDense) {
      multiply_add(to + at, map.transition + slice * head_transition_floats(), state + at, map.state + at,
                   head_dim_k, head_dim_v);
    } else {
      decay_add(to + at, map.transition[slice / rows_of_decay], state + at, map.state + at, head_dim_v);
    }
  }
}

void AffineMap::compose(const AffineMapView &to, const AffineMapView &later, const AffineMapView &earlier,
                        Slices part) const {
  apply(to.state, later, earlier.state, part);
  if (to.transition != nullptr) compose_transitions(to.transition, later.transition, earlier.transition);
}

void AffineMap::compose_transitions(float *to, const float *later, const float *earlier) const {
  if (kind != Transition::kDense) {
    for (int64_t i = 0; i < transition_floats(); ++i) to[i] = compose_decays(later[i], earlier[i]);
    return;
  }
  for (int64_t at = 0; at < transition_floats(); at += head_transition_floats())
    multiply_add(to + at, later + at, earlier + at, nullptr, head_dim_k, head_dim_k);
}

void AffineMap::fill_known_transition(float *to, const KnownTransition &known, const float *log_decay) const {
  for (int64_t i = 0; i < transition_floats(); ++i)
    to[i] = known.reset                 ? kForgetsAll
            : kind == Transition::kHead ? head_decay_code(log_decay[i % heads], known.tokens)
                                        : kKeepsAll;
}

}  // namespace lasp
