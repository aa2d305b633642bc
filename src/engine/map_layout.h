// A map in a caller's memory, as lasp.h documents it under "Stages": the engine's own layout (core/affine_map.h),
// padded, and without a transition that is the identity everywhere.
#pragma once

#include <lasp/lasp.h>

#include <cstddef>
#include <cstdint>

#include "core/affine_map.h"
#include "core/problem.h"

namespace lasp {

struct MapLayout {
  explicit MapLayout(const Problem &problem);

  AffineMap map;
  const char *why_not;                      // the problem has no stages; null: it has
  int32_t transition;                       // LASP_TRANSITION_*
  uint64_t transition_offset, used, bytes;  // of the transition; without the padding; of one map

  bool has_transition() const { return transition != LASP_TRANSITION_IDENTITY; }
  uint64_t state_bytes() const { return static_cast<uint64_t>(map.state_floats()) * sizeof(float); }
  // The transition is null where there is none.
  AffineMapView view(void *at) const;
  // To be read only.
  AffineMapView view(const void *at) const { return view(const_cast<void *>(at)); }
};

}  // namespace lasp
