// How long a plan's passes take on an idle device: the copy floor, the time that a copy of as many bytes takes as
// any implementation must move, over the share of it that each family of kernels was measured to reach. Pure.
#pragma once

#include <string>

#include "cuda/choice/choices.h"

namespace lasp::cuda {

struct PredictedTime {
  double us = 0, floor_us = 0;  // 0: no kernel of this family and size was measured
  double share() const { return us > 0 ? floor_us / us : 0; }
};

// Of a pass, and for backward with the gradient of the decay where there is one. `bytes_per_us`: of a copy.
PredictedTime predict(const PlanInputs &inputs, const Choices &choices, const KernelFinder &kernels, bool backward,
                      double bytes_per_us);

// For lasp_plan_describe; "" where nothing is predicted.
std::string predicted_times(const PlanInputs &inputs, const Choices &choices, const KernelFinder &kernels,
                            double bytes_per_us);

}  // namespace lasp::cuda
