// The outputs of the causal form.
//
// Serves: every causal plan.
// Needs:  the states that enter the runs (StateScan). What it keeps for the fused backward pass, states at
//         checkpoints, lies in the state cache.
// Launches: one linear pass over some of the runs.
#pragma once

#include "cuda/backend/state_scan.h"

namespace lasp::cuda {

class Outputs {
 public:
  explicit Outputs(const DevicePlan &plan) : plan_(plan) {}

  // `checkpoints`: where to keep them; null: nowhere.
  void run(const ForwardBuffers &b, const ScanWorkspace &states, void *checkpoints,
           const DeviceArray<gpu::Run> &runs, gpu::RunFilter filter = gpu::RunFilter::kAll) const;

 private:
  const DevicePlan &plan_;
};

}  // namespace lasp::cuda
