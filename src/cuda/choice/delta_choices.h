// What a plan of the delta rule decides about its kernels. Pure.
#pragma once

#include <string>

#include "cuda/choice/kernel_table.h"
#include "cuda/choice/plan_inputs.h"

namespace lasp::cuda {

struct DeltaChoices {
  gpu::KernelSet set = gpu::KernelSet::kGeneric;  // of all its launches

  // For lasp_plan_describe.
  std::string describe(int32_t compute_capability) const;
};

// The set that serves outputs, and with a backward pass its two launches as well.
DeltaChoices make_delta_choices(const Problem &problem, int32_t compute_capability);

}  // namespace lasp::cuda
