// What a plan of the delta rule decides about its kernels, and the passes that these are asked about. Pure.
#pragma once

#include <string>

#include "cuda/choice/kernel_finder.h"
#include "cuda/choice/plan_inputs.h"

namespace lasp::cuda {

struct DeltaChoices {
  gpu::KernelSet set = gpu::KernelSet::kGeneric;  // of all launches of forward and backward, but not of a step
  std::string why_not;                            // the tensor cores
  int32_t spacing = 0;                            // tokens between checkpoints
  // Of dq and dk, as the launch leaves them: half of the heads of o where it adds up two each.
  int32_t gradient_heads = 0;

  // For lasp_plan_describe.
  std::string describe(int32_t compute_capability) const;
};

// The set that serves outputs, and with a backward pass its two launches as well. What one pass keeps the others
// read, so that one set does all.
DeltaChoices make_delta_choices(const PlanInputs &inputs, const KernelFinder &kernels);

// Passes over `runs` with the plan's tensors, and without states and workspace. `staged`: where those
// of the gradients of q, k and v that have fewer heads than the launch leaves go, in float32: `gradient_heads` of q
// and k, all of v.
gpu::DeltaForward delta_forward_pass(const PlanInputs &inputs, const RunSpan &runs, const ForwardBuffers &b);
gpu::DeltaReversed delta_reversed_pass(const PlanInputs &inputs, const RunSpan &runs, const BackwardBuffers &b);
gpu::DeltaGradients delta_gradients_pass(const PlanInputs &inputs, const RunSpan &stretches,
                                         const BackwardBuffers &b, float *const (&staged)[3],
                                         int32_t gradient_heads);

}  // namespace lasp::cuda
