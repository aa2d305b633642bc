// What delta_test.cpp launches: the passes of a rank once, with their results, and large ones to be timed.
#pragma once

#include <optional>

#include "delta_reference.h"
#include "device_time.h"

namespace lasp::gpu {

DeltaResults launch_delta(const DeltaProblem &p);

// Rows of `tokens` tokens in bfloat16, K = V = dim.
class DeltaTimer {
 public:
  DeltaTimer(KernelSet set, int64_t batch, int32_t heads, int64_t tokens, int32_t dim, Decay decay);
  void forward(bool keeps_checkpoints);
  void reversed();
  void gradients();
  void copy();  // of one tensor

 private:
  Tensor tensor(const DeviceMemory &memory) const;

  KernelSet set_;
  Decay decay_;
  size_t bytes_;  // of a tensor
  DeviceMemory q_, k_, v_, d_o_, out_, more_, last_, g_, d_g_, beta_, d_beta_;
  std::optional<DeviceCopy> segments_, runs_, stretches_;
  std::optional<DeviceMemory> checkpoints_, d_checkpoints_, work_;
  DeltaInputs inputs_;
};

}  // namespace lasp::gpu
