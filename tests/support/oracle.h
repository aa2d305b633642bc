// The float64 oracle: linear attention one token at a time, forward and backward, as reference/lasp_reference.py
// states it. Slow on purpose: no chunks, no ranks, no code of the library.
#pragma once

#include <cstdint>
#include <vector>

namespace lasp_test {

enum class OracleDecay { none, head, scalar, channel };

struct OracleProblem {
  int64_t batch = 1, tokens = 0;
  int64_t heads_q = 1, heads_k = 1, heads_v = 1, head_dim_k = 8, head_dim_v = 8;
  OracleDecay decay = OracleDecay::none;
  bool delta = false;
  bool bidirectional = false;  // decay none and the additive write only
  double scale = 1.0;
  std::vector<int64_t> cu_seqlens;  // empty: each batch row is one sequence

  int64_t heads() const;
  int64_t num_sequences() const;
};

// Row-major, shaped as in lasp.h; an empty vector is an absent tensor.
struct OracleInputs {
  std::vector<double> q, k, v, g, beta, initial_state, d_o, d_final_state;
};

struct OracleOutputs {
  std::vector<double> o, final_state, dq, dk, dv, dg, d_beta, d_initial_state;
  std::vector<double> dg_sizes;  // shaped like dg: the sum over tokens of the sizes of the terms that dg sums
  // The same of what the terms would be in the root mean square if the products that they sum had random signs.
  std::vector<double> dg_norms;
};

OracleOutputs run_oracle(const OracleProblem &problem, const OracleInputs &inputs);

}  // namespace lasp_test
