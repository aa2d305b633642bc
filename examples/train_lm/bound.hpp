// How far apart two float32 loss curves of one training run may lie when only the order of sums differs.
#pragma once

#include <cstdint>
#include <vector>

#include "trainer.hpp"

namespace train_lm {

// One bound per step, from the shape, the larger of the two runs' chunks and the steps of the reference run.
std::vector<double> curve_bound(const Shape &shape, std::int64_t tokens, int chunk, const RunResult &reference);

struct CurveDifference {
  double largest = 0.0;      // over the steps
  int step = 0;              // where
  double bound = 0.0;        // there
  double worst_ratio = 0.0;  // largest difference / bound over the steps: at most 1 when the curves agree
};
CurveDifference compare_curves(const RunResult &a, const RunResult &b, const std::vector<double> &bound);

}  // namespace train_lm
