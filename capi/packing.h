// A caller's lasp_packing, checked against a plan.
#pragma once

#include <lasp/lasp.h>

#include "buffers.h"
#include "core/packing.h"
#include "engine/plan.h"

namespace lasp {

// All zero for a plan that is not packed. Throws Error.
Packing check_packing(BufferCheck &check, const lasp_packing *given, const Plan &plan);
// The same, where the host has to read them: offsets in device memory are refused.
Packing check_host_packing(BufferCheck &check, const lasp_packing *given, const Plan &plan);

}  // namespace lasp
