// Small problems of which every result is known: the recurrence in float64, forward and backward, all tensors and
// all elements; and rows that a halo brings. What lasp-bench's own reference leaves out: the delta rule, step,
// halos.
#pragma once

#include <string>
#include <vector>

#include "config.h"
#include "group.h"

namespace bench {

struct Answer {
  double error = 0;   // the largest relative Frobenius error of a tensor on a rank; 0: the same
  double most = 0;    // that float32 arithmetic explains
  std::string where;  // the tensor
  bool right() const { return error <= most; }
};

// All are complete where group.is_speaker(). Batch 1, equal heads; any decay but per head.
Answer ask_passes(Group &group, const Config &config);
// Token by token, in a group of one.
Answer ask_step(Group &group, const Config &config);
// A halo of three rows, in either direction.
Answer ask_halo(Group &group, const Config &config);

}  // namespace bench
