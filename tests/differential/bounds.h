// How far a result may lie from the oracle's, derived in bounds.cpp.
#pragma once

#include <array>
#include <optional>
#include <vector>

#include "differential/draw.h"

namespace lasp_test {

// The columns of the tables: the tensors of forward and backward, and two of lasp_step.
constexpr int kStepO = kTensors, kStepState = kTensors + 1, kColumns = kTensors + 2;

TensorId tensor_of(int column);
int32_t dtype_of(const Case &c, int column);

// The roundings that one term of a sum goes through at most, on its way from the inputs into the result.
int64_t roundings(const Drawn &drawn, int column);

class Bounds {
 public:
  Bounds(const Drawn &drawn, const CaseData &data);
  // What the error of each element cannot exceed. `expected` holds the elements of the column.
  std::vector<double> certain(int column, const std::vector<double> &expected) const;
  // What the Frobenius norm of the error of many elements is not likely to exceed; `size`: the norm it is relative
  // to.
  double likely(int column, const std::vector<double> &expected, double size) const;

 private:
  std::vector<double> channel_decay_sizes(const CaseData &data) const;

  const Drawn &drawn_;
  TensorSet sizes_;  // sums of the sizes of the terms
};

}  // namespace lasp_test
