// Backward with per-channel decay where its gradient is asked for: dq, dk and d_decay by two walks on tensor cores,
// dv by the linear pass.
//
// Serves: K of 64 or a multiple of 128, V a multiple of 64, and what else gpu::channel_backward_refusal says.
//         Pointers are looked at in each call. Without the gradient of the decay the three passes do as well.
// Needs:  the states that enter the runs and their gradients; StagedGradients for shared heads; `ends`.
// Launches: the two walks, sums over groups, the pass of v.
#pragma once

#include "cuda/backend/three_passes.h"

namespace lasp::cuda {

class ChannelBackward {
 public:
  explicit ChannelBackward(const DevicePlan &plan) : plan_(plan), sums_(plan), passes_(plan) {}

  bool serves(const BackwardBuffers &b) const;
  // gpu::ChannelBackward::ends.
  float *place_ends(Carver &carver) const;
  void run(const BackwardBuffers &b, const ScanWorkspace &states, const ScanWorkspace &gradients,
           const StagedGradients &staged, float *ends) const;

 private:
  const DevicePlan &plan_;
  GroupSums sums_;
  ThreePasses passes_;
};

}  // namespace lasp::cuda
