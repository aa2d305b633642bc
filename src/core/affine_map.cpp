#include "core/affine_map.h"

#include "core/decay.h"

namespace lasp {
namespace {

Transition transition_of(Decay decay) {
  switch (decay) {
    case Decay::kNone: return Transition::kIdentity;
    case Decay::kHead: return Transition::kHead;
    case Decay::kScalar: return Transition::kScalar;
    case Decay::kChannel: return Transition::kDiagonal;
  }
  return Transition::kIdentity;
}

}  // namespace

AffineMap affine_map_of(const Problem &problem) {
  return {transition_of(problem.decay), problem.batch, problem.heads, problem.head_dim_k, problem.head_dim_v};
}

int64_t AffineMap::transition_floats() const {
  return rows * heads * (kind == Transition::kDiagonal ? head_dim_k : 1);
}

void compose_transitions(const AffineMap &map, float *to, const float *later, const float *earlier) {
  for (int64_t i = 0; i < map.transition_floats(); ++i) to[i] = compose_decays(later[i], earlier[i]);
}

void fill_known_transition(const AffineMap &map, float *to, const KnownTransition &known, const float *log_decay) {
  for (int64_t row = 0; row < map.rows; ++row)
    for (int64_t h = 0; h < map.heads; ++h)
      to[row * map.heads + h] = known.reset                     ? kForgetsAll
                                : map.kind == Transition::kHead ? head_decay_code(log_decay[h], known.tokens)
                                                                : kKeepsAll;
}

}  // namespace lasp
