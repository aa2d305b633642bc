// The buffers of a pass, or of a stage of one, against their plan.
#pragma once

#include <lasp/lasp.h>

#include "buffers.h"
#include "engine/backend.h"
#include "engine/plan.h"

namespace lasp {

// The whole pass, or which stage of it: what a stage does not use may be absent.
enum class Stage { kWhole, kSummarize, kApply };

// Workspace of the stages, checked as ForwardBuffers and BackwardBuffers are.
struct StageBuffers {
  void *map = nullptr;              // summarize
  const float *incoming = nullptr;  // apply; may be null
};

ForwardBuffers check_forward(const lasp_forward_args &a, const Plan &plan, Stage stage, StageBuffers *of_stage);
BackwardBuffers check_backward(const lasp_backward_args &a, const Plan &plan, Stage stage, StageBuffers *of_stage);

}  // namespace lasp
