#include "config.h"

#include <algorithm>
#include <cmath>

namespace bench {

std::string name_of(std::span<const Named> names, int32_t value) {
  for (const Named &named : names)
    if (named.value == value) return std::string(named.name);
  return std::to_string(value);
}

int32_t Shape::heads() const { return std::max({heads_q, heads_k, heads_v}); }
double Shape::scale() const { return 1.0 / std::sqrt(static_cast<double>(head_dim_k)); }
uint64_t Shape::state_bytes() const {
  return static_cast<uint64_t>(batch) * heads() * head_dim_k * head_dim_v * sizeof(float);
}

lasp_problem Config::problem(int32_t rank) const {
  lasp_problem problem = LASP_PROBLEM_INIT;
  problem.batch = shape.batch;
  problem.tokens = first_token(rank + 1) - first_token(rank);
  problem.heads_q = shape.heads_q;
  problem.heads_k = shape.heads_k;
  problem.heads_v = shape.heads_v;
  problem.head_dim_k = shape.head_dim_k;
  problem.head_dim_v = shape.head_dim_v;
  problem.dtype = shape.dtype;
  problem.decay = shape.decay;
  if (shape.decay != LASP_DECAY_NONE && shape.decay != LASP_DECAY_HEAD)
    problem.decay_layout.dtype = problem.d_decay_layout.dtype = shape.decay_dtype();
  problem.mask = shape.mask;
  problem.write = shape.write;
  problem.schedule = schedule;
  problem.cache = cache;
  problem.chunk = chunk;
  problem.segment = segment;
  problem.backward = has_backward() ? 1 : 0;
  return problem;
}

double count_flop(const Shape &shape, int32_t chunk, bool backward) {
  const double c = chunk, k = shape.head_dim_k, v = shape.head_dim_v;
  double flop = (backward ? 8 : 4) * k * v;
  if (shape.delta())
    flop = (backward ? 14 : 6) * k * v + (backward ? 6 : 2) * c * (k + v) + c * c / 3;
  else if (!shape.bidirectional())
    flop += (backward ? 6 * c * k + 4 * c * v : 2 * c * k + 2 * c * v) / 2;
  return flop * static_cast<double>(shape.batch) * static_cast<double>(shape.tokens) * shape.heads();
}

}  // namespace bench
