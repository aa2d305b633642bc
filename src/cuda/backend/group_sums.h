// Gradients of heads that several output heads share.
//
// Serves: gradients of q, k and v where no kernel sums them over a group itself.
// Needs:  StagedGradients: the gradient by output head.
// Launches: a linear pass into the staged gradient, and a sum over groups; for plans of the fused pass a group of
// heads
//           at a time.
#pragma once

#include "cuda/backend/device_plan.h"

namespace lasp::cuda {

class GroupSums {
 public:
  explicit GroupSums(const DevicePlan &plan) : plan_(plan) {}

  // A pass whose y is the gradient.
  void run(gpu::GenericPass pass, const Gradient &gradient, void *staged, const char *what) const;
  // Only the sum of what is staged of all heads in the tensors' type; nothing where no heads are shared.
  void sum(const Gradient &gradient, const void *staged) const;

 private:
  void run_by_group(const gpu::GenericPass &whole, const Gradient &gradient, void *staged, const char *what) const;
  void sum_pass(const Gradient &gradient, const gpu::GenericPass &pass, const char *what) const;

  const DevicePlan &plan_;
};

}  // namespace lasp::cuda
