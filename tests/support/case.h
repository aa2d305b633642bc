// One test problem: its shape, how its tokens lie on ranks and in memory, and its data. A case knows the whole
// (global) problem; what one rank holds of it follows from the number of ranks.
#pragma once

#include <array>
#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include <lasp/lasp.h>

#include "support/oracle.h"

namespace lasp_test {

enum class Split {
  even,             // as equal as can be, the larger parts first
  ragged,           // parts of very different sizes
  sparse,           // 0, 1, 17, 0, ... tokens and the rest on the last rank
  sparse_reversed,  // the rest on the first rank, the last ones nearly or wholly empty
  free,             // where Case::cuts says
};

enum class Layout {
  contiguous,  // strides left zero
  head_major,  // [B, H, T, D]
  packed_qkv,  // q, k and v (and dq, dk and dv) side by side in one buffer
  padded,      // unused elements after each head, token and batch row
  mixed,       // each tensor has one of its own (Operand), with strides that no other tensor has
  expanded,    // inputs have stride 0 along expanded_axis: one element serves many. Data has such values
};

// Which tensor of a call it is, for Layout::mixed and Layout::expanded.
enum class Operand : int32_t { q, k, v, dq, dk, dv, o, d_o, decay, d_decay, beta, d_beta };
constexpr int32_t kOperands = 10;
enum class Axis { none, batch, token, head };
Axis expanded_axis(Operand operand);

struct Case {
  std::string name;
  int64_t batch = 1, tokens = 96;  // tokens of the whole sequence, over all ranks
  int32_t heads_q = 2, heads_k = 2, heads_v = 2, head_dim_k = 16, head_dim_v = 16;
  int32_t decay = LASP_DECAY_NONE, dtype = LASP_FLOAT32, decay_dtype = LASP_FLOAT32, mask = LASP_MASK_CAUSAL;
  bool delta = false;  // the delta write; keys are then of length 1 where they are not exact
  int32_t beta_dtype = LASP_FLOAT32;
  double most_beta = 1.0;        // beta is uniform up to it, and exactly 0 for every seventh token
  double constant_beta = -1.0;   // at least 0: every beta is this
  double key_correlation = 0.0;  // of any two keys, by a direction that all have in common
  float scale = 0.0f;            // 0: 1/sqrt(K), but for
  bool zero_scale = false;
  std::vector<int64_t> cu_seqlens = {};
  Split split = Split::even;
  int32_t ownership = LASP_OWN_CONTIGUOUS;  // other ones have splits of their own
  std::vector<double> cuts = {};            // Split::free: where ranks end, in rising order, as parts of all tokens
  Layout layout = Layout::contiguous;
  bool states = true;           // an initial state and a gradient of the final state are given
  double mean_decay = 0.2;      // of -g, exponentially distributed
  double constant_decay = 0.0;  // not 0: every g is this
  double open_gates = 0.0;      // this part of all g is 0
  bool exact = false;           // small integers: every sum is exact in float32, so results must be equal
  int32_t cache = LASP_CACHE_CHUNKS, chunk = 0, pieces = 0, cpu_threads = 1;
  int64_t segment = 0;     // lasp_problem.segment; ranks are then cut at multiples of it
  bool broadcast = false;  // of final_state
  bool aligned = false;    // tensors begin at multiples of 64 bytes, as a GPU's fast kernels want them
  bool quick = false;      // part of the reduced set for sanitizer builds

  int64_t heads() const;
  int64_t num_sequences() const;
  double scale_value() const;
};

// Tokens [begin, begin + count) of the whole buffer.
struct TokenRun {
  int64_t begin, count;
};
// Of LASP_OWN_RUNS: drawn, with ranks that have several, one and none, runs without tokens, and neighbours.
std::vector<lasp_run> listed_runs(const Case &c, int32_t nranks);
// What a rank holds, in the order of its tensors.
std::vector<TokenRun> runs_of_rank(const Case &c, int32_t rank, int32_t nranks);
// What the ranks hold.
std::vector<int64_t> tokens_of_ranks(const Case &c, int32_t nranks);
// A contiguous tensor of all tokens (those of a row are neighbours) with the tokens of each rank together, rank
// after rank; and back.
std::vector<float> in_order_of_ranks(const Case &c, int32_t nranks, const std::vector<float> &x);
std::vector<double> in_order_of_tokens(const Case &c, int32_t nranks, const std::vector<double> &x);
struct SequenceOwner {
  int64_t begin, end;
  int32_t first_rank, last_rank;
};
std::vector<SequenceOwner> sequence_owners(const Case &c, int32_t nranks);

// Global tensors, contiguous, as floats already rounded to the case's dtypes; an empty vector is an absent one.
struct CaseData {
  std::vector<float> q, k, v, g, beta, initial_state, d_o, d_final_state;
};
CaseData make_data(const Case &c, uint64_t seed = 0);

// What GoogleTest prints of a parameter.
std::ostream &operator<<(std::ostream &out, const Case &c);

// All results of forward and backward, by a fixed index so that one loop serves them all.
enum TensorId { kO, kFinalState, kDq, kDk, kDv, kDDecay, kDInitialState, kDBeta, kTensors };
extern const char *const kTensorNames[kTensors];
using TensorSet = std::array<std::vector<double>, kTensors>;

OracleOutputs oracle_of(const Case &c, const CaseData &data);

struct Expected {
  TensorSet tensors;
  // What d_decay's error is relative to; 0: d_decay itself. A per-head gradient is one sum over all tokens of terms
  // of either sign, which may cancel: it can be right to a fraction of the sum of the terms' sizes, and no better.
  double d_decay_size = 0.0;
  double d_decay_norm = 0.0;  // its root mean square if products of states and their gradients had random signs
};
Expected expected_of(const Case &c, const CaseData &data);
// The same, remembered by the case's name (for data of seed 0).
const CaseData &cached_data(const Case &c);
const Expected &cached_expected(const Case &c);

// The one case table.
const std::vector<Case> &all_cases();
const Case &case_named(const std::string &name);
// LASP_TEST_QUICK in the environment: sanitizer builds run the cases marked quick only.
bool quick_run();
// LASP_TEST_WHOLE in the environment: cases do not take turns (tests/long/conformance.sh).
bool whole_run();

}  // namespace lasp_test
