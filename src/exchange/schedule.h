// The exchange as a pure list of steps: who sends which map to whom, and what is composed. No memory, no transport:
// testable alone. An exchange is an exclusive prefix scan of affine maps S_out = M S_in + s over the ranks in
// order; the backward pass is the same with the ranks counted from the other end.
#pragma once

#include <lasp/lasp.h>

#include <cstdint>
#include <vector>

#include "core/affine_map.h"

namespace lasp {

enum class Op : int32_t {
  kSend,     // slot -> peer
  kReceive,  // peer -> slot
  kCompose   // slot = later after earlier
};

// Slots hold maps. Positions are ranks counted in the scan's direction.
struct ExchangeStep {
  Op op;
  int32_t peer = -1;  // position; send and receive
  int32_t slot = 0;
  int32_t later = -1;  // compose: slots; `slot` may equal `later`
  int32_t earlier = -1;
  bool transition = false;        // send, receive: the transition goes along when it is not known locally.
                                  // compose: the result's transition is needed too
  int32_t first = -1, last = -1;  // receive: the map covers the positions [first, last]
  int64_t begin = 0, end = 0;     // slices of the map; all of them but for the all-scan schedule
};

struct StepList {
  std::vector<ExchangeStep> steps;
  int32_t slots = 0;
  int32_t own = -1;     // the slot of this rank's own map; -1: nobody wants it (the last position)
  int32_t result = -1;  // the slot whose state is the incoming one; -1: nothing comes in (position 0)
};

// Maps are cut into `pieces` for the all-scan schedule. 0 <= position < nranks.
StepList make_steps(int32_t schedule, int32_t position, int32_t nranks, const AffineMap &map, int32_t pieces);

}  // namespace lasp
