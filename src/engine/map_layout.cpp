#include "engine/map_layout.h"

#include "core/workspace.h"

namespace lasp {
namespace {

const char *reason_without_stages(const Problem &problem) {
  if (problem.bidirectional) return "mask = LASP_MASK_BIDIRECTIONAL: states go both ways";
  // Of a rank's segments each is applied to the state in turn: their composition is never formed.
  if (problem.segment > 0) return "segment: a rank has no map of its own";
  if (problem.schedule == LASP_SCHEDULE_RELAY)
    return "schedule = LASP_SCHEDULE_RELAY: a pass begins with the state that enters, and makes no map";
  return nullptr;
}

int32_t transition_of(const Problem &problem, Transition kind) {
  switch (kind) {
    case Transition::kIdentity: return problem.packed ? LASP_TRANSITION_SCALAR : LASP_TRANSITION_IDENTITY;
    case Transition::kDiagonal: return LASP_TRANSITION_DIAGONAL;
    case Transition::kDense: return LASP_TRANSITION_DENSE;
    default: return LASP_TRANSITION_SCALAR;
  }
}

}  // namespace

MapLayout::MapLayout(const Problem &problem)
    : map(affine_map_of(problem)),
      why_not(reason_without_stages(problem)),
      transition(transition_of(problem, map.kind)) {
  const int64_t floats = has_transition() ? map.transition_floats() : 0;
  used = state_bytes() + static_cast<uint64_t>(floats) * sizeof(float);
  bytes = (used + kAlignment - 1) / kAlignment * kAlignment;
  transition_offset = has_transition() ? state_bytes() : bytes;
}

AffineMapView MapLayout::view(void *at) const {
  AffineMapView whole = map.view(static_cast<float *>(at));
  if (!has_transition()) whole.transition = nullptr;
  return whole;
}

}  // namespace lasp
