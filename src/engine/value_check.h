// check_values: what a pass read and wrote on this rank, looked through for NaN, infinity and decays above 0.
#pragma once

#include "engine/backend.h"
#include "engine/plan.h"

namespace lasp {

// After the pass, which on a device is waited for. Throw LASP_ERROR_VALUES for the first find, inputs before
// outputs.
void check_values(const Plan &plan, const ForwardBuffers &buffers, lasp_stream stream);
void check_values(const Plan &plan, const BackwardBuffers &buffers, lasp_stream stream);
void check_values(const Plan &plan, const StepBuffers &buffers, lasp_stream stream);

}  // namespace lasp
