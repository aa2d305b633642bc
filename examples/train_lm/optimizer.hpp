// AdamW with linear warm-up, cosine decay and clipping by the global norm. Every rank holds the same parameters and
// the same summed gradient, so every rank makes the same step.
#pragma once

#include <vector>

#include "memory.hpp"
#include "parameters.hpp"

namespace train_lm {

struct OptimizerSettings {
  double peak_rate = 0.0, weight_decay = 0.0, clip = 1.0;
  int warmup = 0, steps = 0;
};

struct StepStatistics {
  double rate = 0.0;      // the learning rate of the step
  double norm = 0.0;      // 2-norm of the gradient before clipping
  double norm_one = 0.0;  // 1-norm of the same
};

class Optimizer {
 public:
  Optimizer(const Layout &layout, const OptimizerSettings &settings, MemoryMeter &meter);

  // `gradient` is the sum over all ranks.
  StepStatistics step(const float *gradient, float *parameters);

 private:
  double rate() const;

  const Layout &layout_;
  const OptimizerSettings settings_;
  Array<float> first_, second_;  // the moments
  int step_ = 0;
};

}  // namespace train_lm
