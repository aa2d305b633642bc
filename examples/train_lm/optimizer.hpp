// AdamW with linear warm-up, cosine decay and clipping by the global norm. Every rank holds the same parameters and
// the same summed gradient, so every rank makes the same step.
#pragma once

#include "parameters.hpp"
#include "weights.hpp"

namespace train_lm {

struct OptimizerSettings {
  double peak_rate = 0.0, weight_decay = 0.0, clip = 1.0;
  int warmup = 0, steps = 0;
};

class Optimizer {
 public:
  Optimizer(const Layout &layout, const OptimizerSettings &settings, Device &device);

  // `gradient` is the sum over all ranks, *squares the sum of its squares. Returns the learning rate of the step.
  double step(const float *gradient, const double *squares, Parameters &parameters);

 private:
  double rate() const;

  const Layout &layout_;
  const OptimizerSettings settings_;
  Device &device_;
  DeviceArray<float> first_, second_;  // the moments
  int step_ = 0;
};

}  // namespace train_lm
