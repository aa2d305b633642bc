// Which tokens of a run count where decay is per head.
#pragma once

#include "launch.h"

namespace lasp::gpu {

// How many, from where the state leaves: of the token at distance n from the longer run's end exp(n g) is left,
// which is to be the decay cutoff or more. All where g is no number. By a division that takes few registers, and is
// the same wherever it is compiled.
__device__ __forceinline__ int32_t counted_tokens(const Run &run, float g, bool reversed) {
  const float furthest = __fdividef(-40 * 0.693147180559945309f, g);  // log kDecayCutoff
  const int32_t behind = reversed ? run.before : run.after;
  if (!(g < 0 && furthest < static_cast<float>(behind + run.length - 1))) return run.length;
  return max(0, static_cast<int32_t>(furthest) + 1 - behind);
}

}  // namespace lasp::gpu
