// How far apart two float32 loss curves of one training run may lie when only the order of sums differs.
#pragma once

#include <cstdint>
#include <vector>

#include "trainer.hpp"

namespace train_lm {

// How many rows of a rank's a product may sum in one go, where a weight's gradient is found: a tile on the CPU, and
// on a GPU all of them in the worst case.
double terms_at_once(const Place &place, std::int64_t tokens);

// One bound per step, from the shape, the largest of the two runs' terms_at_once and chunks, and the steps of the
// reference run.
std::vector<double> curve_bound(const Shape &shape, std::int64_t tokens, double at_once, int chunk,
                                const RunResult &reference);

struct CurveDifference {
  double largest = 0.0;      // over the steps
  int step = 0;              // where
  double bound = 0.0;        // there
  double worst_ratio = 0.0;  // largest difference / bound over the steps: at most 1 when the curves agree
};
CurveDifference compare_curves(const RunResult &a, const RunResult &b, const std::vector<double> &bound);

}  // namespace train_lm
