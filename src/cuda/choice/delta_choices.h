// What a plan of the delta rule decides about its kernels, and the passes that these are asked about. Pure.
#pragma once

#include <string>

#include "cuda/choice/kernel_finder.h"
#include "cuda/choice/plan_inputs.h"

namespace lasp::cuda {

// How the launch of all gradients leaves dq and dk.
struct LeftGradients {
  int32_t heads = 0;     // of o, or half as many where it adds up two each
  bool float32 = false;  // whatever their type is, since it adds to them again and again
};

struct DeltaChoices {
  // Of the launches of forward and backward, but not of a step.
  gpu::KernelSet forward = gpu::KernelSet::kGeneric, reversed = gpu::KernelSet::kGeneric,
                 gradients = gpu::KernelSet::kGeneric;
  std::string why_not;            // the tensor cores, in the last of them that does without
  int32_t spacing = 0;            // tokens between checkpoints
  bool own_checkpoints = false;   // DeltaInputs
  LeftGradients left, left_once;  // the latter by one walk back, where passes have that

  // For lasp_plan_describe.
  std::string describe(int32_t compute_capability, bool backward) const;
};

// For each launch the set that serves it. But kHopper, whose checkpoints no other set reads, for all or none; and
// kMma for gradients only where it serves both walks.
DeltaChoices make_delta_choices(const PlanInputs &inputs, const KernelFinder &kernels);

// Passes over `runs` with the plan's tensors, and without states and workspace. `staged`: where those
// of the gradients of q, k and v go, in float32, that the launch does not leave as they are wanted.
gpu::DeltaForward delta_forward_pass(const PlanInputs &inputs, const RunSpan &runs, const ForwardBuffers &b);
gpu::DeltaReversed delta_reversed_pass(const PlanInputs &inputs, const RunSpan &runs, const BackwardBuffers &b);
gpu::DeltaGradients delta_gradients_pass(const PlanInputs &inputs, const RunSpan &stretches,
                                         const BackwardBuffers &b, float *const (&staged)[3],
                                         const LeftGradients &left);
// Whether the launch leaves a gradient of so many heads in `staged`. `of_value`: that of v.
bool is_staged(const LeftGradients &left, int32_t heads_of_output, int32_t heads, bool of_value);

}  // namespace lasp::cuda
