// Compares results with the oracle, by bounds that are derived in measure.cpp, and keeps the worst errors for a
// table.
#pragma once

#include <ostream>
#include <string>

#include "support/case.h"
#include "support/group.h"

namespace lasp_test {

// "" or one line for each tensor that is wrong. Tensors absent from `actual` are wrong unless expected empty too.
// `spread` multiplies the bounds, which are for the mean over many independent elements.
std::string compare(const Case &c, const Expected &expected, const Outputs &actual, double spread = 1.0);

// The relative Frobenius error that tensor `id` of this case may have; `tensor_cores`: see RankResult.
double error_bound(const Case &c, TensorId id, bool tensor_cores = false);
// ||actual - expected|| / size, where a size of 0 means ||expected||; absolute where that vanishes.
double relative_error(const std::vector<double> &expected, const std::vector<double> &actual, double size = 0.0);

bool same_bits(const TensorSet &a, const TensorSet &b);

// The worst error per dtype and tensor that compare() has seen in this process, beside its bound.
void print_worst_errors(std::ostream &out);

}  // namespace lasp_test
