// What a plan decides about its kernels: tensor cores or not, which of the backward passes, and how long the runs
// are that its tokens are cut into. Pure: kernels and device are asked through KernelFinder, so that choices can
// be tested without either.
#pragma once

#include <cstdint>
#include <string>

#include "core/workspace.h"
#include "cuda/choice/kernel_finder.h"
#include "cuda/choice/plan_inputs.h"

namespace lasp::cuda {

struct Choices {
  bool tensor_cores = false;  // for every pass of the plan, pointers permitting
  std::string why_not;        // the tensor cores
  // Runs of passes, and the parts of them by which states are found.
  int64_t run_tokens = 0, state_tokens = 0;
  // The fused backward pass serves the plan, pointers permitting, in runs of its own; (run, head) that it works on
  // at once.
  bool fused = false;
  bool fused_for_decay = false;  // only in calls that want the decay's gradient: for others three passes are faster
  bool fused_sums = false;       // it sums the gradients of shared heads of k and v itself
  int64_t fused_run_tokens = 0, fused_state_tokens = 0, fused_blocks = 0;
  bool channel = false;  // likewise the walks for per-channel decay

  // For lasp_plan_describe.
  std::string describe(int64_t tokens, int32_t compute_capability) const;
};

Choices make_choices(const PlanInputs &inputs, const KernelFinder &kernels, int32_t multiprocessors);

// Of all tensors' bytes the workspace is to take one part in so many.
inline constexpr int64_t kWorkspaceShare = 10;

// The passes that the kernels are asked about. `staged_dq` and `staged_dk` are where gradients by output head go.
gpu::FusedBackward fused_pass(const PlanInputs &inputs, const RunSpan &reversed_runs, const BackwardBuffers &b,
                              void *staged_dq, void *staged_dk);
gpu::ChannelBackward channel_pass(const PlanInputs &inputs, const RunSpan &runs, const BackwardBuffers &b,
                                  void *staged_dq, void *staged_dk);

// Where gradients wait that a group of output heads shares: found by output head, in the gradient's type or,
// without tensor cores, in float32, and then summed. With tensor cores one gradient is found after the other, in
// the same place; but those of q and k together by the walks of a per-channel decay, and by the fused pass where it
// leaves their sums to others.
struct StagedGradients {
  void *dq = nullptr, *dk = nullptr, *dv = nullptr;
  void place(Carver &carver, const PlanInputs &inputs, const Choices &choices);
};

}  // namespace lasp::cuda
