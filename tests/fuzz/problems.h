// Problems as a caller may state them: legal ones of every kind, legal ones with a few fields damaged, raw bytes.
#pragma once

#include <lasp/lasp.h>

#include <span>

#include "draw.h"
#include "memory.h"

namespace lasp_fuzz {

// One problem seen from each of `ranks.size()` ranks, legal as far as it is not damaged.
struct ProblemOptions {
  bool damage = true;     // a few fields, on one rank or all, in one input of four
  bool packed = false;    // nearly always, instead of as the input chooses
  int32_t most_dim = 64;  // of head_dim_k and head_dim_v
};
void plausible(Draw &in, std::span<lasp_problem> ranks, const ProblemOptions &options);

// Any bytes, but nothing that would legally take gigabytes or seconds.
lasp_problem raw_problem(Draw &in);

}  // namespace lasp_fuzz
