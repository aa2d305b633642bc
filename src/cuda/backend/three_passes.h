// The gradients of q, k and v by a linear pass each.
//
// Serves: every causal plan and call that neither the fused pass nor the channel walks serve.
// Needs:  the states that enter the runs and their gradients (StateScan), StagedGradients for shared heads.
// Launches: three linear passes, each with its GroupSums; for an initial state's gradient under a strong
// per-channel
//           decay in float16 one more, by the generic kernel.
#pragma once

#include "cuda/backend/group_sums.h"
#include "cuda/backend/state_scan.h"

namespace lasp::cuda {

class ThreePasses {
 public:
  explicit ThreePasses(const DevicePlan &plan) : plan_(plan), sums_(plan) {}

  void query(const BackwardBuffers &b, const ScanWorkspace &states, void *staged) const;
  void value(const BackwardBuffers &b, const ScanWorkspace &gradients, void *staged, gpu::RunFilter filter) const;
  void key(const BackwardBuffers &b, const ScanWorkspace &gradients, void *staged, gpu::RunFilter filter) const;

 private:
  gpu::GenericPass reversed_pass(const BackwardBuffers &b, const ScanWorkspace &gradients,
                                 gpu::RunFilter filter) const;

  const DevicePlan &plan_;
  GroupSums sums_;
};

}  // namespace lasp::cuda
