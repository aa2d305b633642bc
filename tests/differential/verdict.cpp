// Two bounds (bounds.cpp). Each element of each tensor is held to what is certain. A tensor whose norm rests on 64
// elements or more, (sum x^2)^2 / sum x^4, is held as a whole to what is likely too, which is far closer, but
// speaks of means over many elements: a few may cancel and leave no more than the rounding of their terms.
#include "differential/verdict.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "support/measure.h"

namespace lasp_test {
namespace {

constexpr double kFew = 64.0;

double norm(const std::vector<double> &x) {
  double sum = 0.0;
  for (const double value : x) sum += value * value;
  return std::sqrt(sum);
}

// How many elements x has its norm from: all of them where they are of one size.
double effective_elements(const std::vector<double> &x) {
  double squares = 0.0, fourths = 0.0;
  const double largest = x.empty() ? 0.0 : std::fabs(*std::max_element(x.begin(), x.end(), [](double a, double b) {
    return std::fabs(a) < std::fabs(b);
  }));
  if (largest == 0.0) return 0.0;
  for (const double value : x) {
    const double square = value / largest * (value / largest);
    squares += square;
    fourths += square * square;
  }
  return squares * squares / fourths;
}

// Below float16's normal numbers rounding is absolute, and a relative error says nothing.
bool below_normal(int32_t dtype, const std::vector<double> &x) {
  const double smallest = dtype == LASP_FLOAT16 ? 0x1p-10 : 1e-30;
  return norm(x) < smallest * std::sqrt(static_cast<double>(x.size()));
}

bool equal_bits(const std::vector<double> &a, const std::vector<double> &b) {
  return a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(double)) == 0;
}

}  // namespace

Verdict::Verdict(const Drawn &drawn, const CaseData &data, uint64_t index, Tables &tables)
    : drawn_(drawn),
      index_(index),
      tables_(tables),
      expected_(expected_of(drawn.problem, data)),
      bounds_(drawn, data) {}

std::string Verdict::of_passes(const Outputs &out) {
  TensorSet expected = expected_.tensors;
  const RunOptions &options = drawn_.options;
  for (const TensorId id : {kDq, kDk, kDv, kDDecay, kDInitialState, kDBeta})
    if (!options.backward) expected[id].clear();
  for (const TensorId id : {kFinalState, kDDecay, kDInitialState})
    if (!options.optional_outputs) expected[id].clear();
  std::string wrong;
  for (int id = 0; id < kTensors; ++id) wrong += tensor(id, expected[id], out.tensors[id]);
  return wrong;
}

std::string Verdict::of_decoding(const Decoded &decoded) {
  if (!decoded.complaints.empty()) return decoded.complaints;
  const Case &c = drawn_.problem;
  return tensor(kStepO, part_of_rows(expected_.tensors[kO], c, drawn_.prefill, c.tokens), decoded.o) +
         tensor(kStepState, expected_.tensors[kFinalState], decoded.state);
}

std::string Verdict::of_ranks(const Outputs &many, const Outputs &one) {
  const Case &c = drawn_.problem;
  std::string wrong;
  for (int id = 0; id < kTensors; ++id) {
    const std::vector<double> &a = one.tensors[id], &b = many.tensors[id];
    if (a.size() != b.size()) return "one rank gives other sizes\n";
    // A rank's share of a per-head gradient is a number of its own, whatever the order of sums.
    if (c.segment > 0 && !(id == kDDecay && c.decay == LASP_DECAY_HEAD)) {
      if (!equal_bits(a, b)) wrong += std::string(name_of(id)) + ": one rank gives other bits with a segment\n";
      continue;
    }
    const double size = id == kDDecay ? expected_.d_decay_size : 0.0, error = relative_error(a, b, size);
    if (c.exact && error != 0.0) wrong += std::string(name_of(id)) + ": one rank gives another exact result\n";
    if (c.segment == 0 && !c.delta && parts_of(a, size) >= kFew && !below_normal(dtype_of(c, id), a))
      tables_.note(Tables::kRanks, c, id, error);
  }
  if (c.segment > 0) tables_.note_segment();
  return wrong;
}

std::string Verdict::tensor(int column, const std::vector<double> &expected, const std::vector<double> &actual) {
  const Case &c = drawn_.problem;
  std::string wrong;
  if (expected.size() != actual.size()) {
    wrong = std::to_string(actual.size()) + " came\n";
  } else if (c.exact && !(column == kDDecay && c.decay == LASP_DECAY_HEAD)) {
    wrong = not_exact(column, expected, actual);
  } else if (c.delta) {
    const bool finite = std::all_of(actual.begin(), actual.end(), [](double x) { return std::isfinite(x); });
    wrong = finite ? whole_beyond(column, expected, actual) : "not all are finite\n";
  } else if (!expected.empty()) {
    wrong = element_beyond(column, expected, actual) + whole_beyond(column, expected, actual);
  }
  if (wrong.empty()) return "";
  return std::string(name_of(column)) + ", " + std::to_string(expected.size()) + " elements: " + wrong;
}

// The suite's own comparison. Decays are none or 1/2 there.
std::string Verdict::not_exact(int column, const std::vector<double> &expected,
                               const std::vector<double> &actual) const {
  Expected only;
  Outputs given;
  only.tensors[tensor_of(column)] = expected, given.tensors[tensor_of(column)] = actual;
  return compare(drawn_.problem, only, given);
}

// Over how many numbers an error is a mean. A per-head gradient is one sum over tokens, and measured against the
// sum of their terms' sizes.
double Verdict::parts_of(const std::vector<double> &x, double of_terms) const {
  const Case &c = drawn_.problem;
  return of_terms > 0.0 ? static_cast<double>(c.batch * c.tokens) : effective_elements(x);
}

std::string Verdict::whole_beyond(int column, const std::vector<double> &expected,
                                  const std::vector<double> &actual) {
  const Case &c = drawn_.problem;
  const double of_terms = column == kDDecay ? expected_.d_decay_size : 0.0;
  if (parts_of(expected, of_terms) < kFew || below_normal(dtype_of(c, column), expected)) {
    tables_.note_small();
    return "";
  }
  const double size = of_terms > 0.0 ? of_terms : norm(expected), error = relative_error(expected, actual, size);
  const double bound = bounds_.likely(column, expected, size) / size;
  if (!c.delta) {  // the tables are of the additive write
    tables_.note(Tables::kOracle, c, column, error);
    tables_.note(Tables::kLikely, c, column, error / bound);
    tables_.note_likely(error / bound, index_);
  }
  if (error <= bound) return "";
  char text[160];
  std::snprintf(text, sizeof text, "relative error %.3g, likely at most %.3g\n", error, bound);
  return text;
}

std::string Verdict::element_beyond(int column, const std::vector<double> &expected,
                                    const std::vector<double> &actual) {
  const std::vector<double> bounds = bounds_.certain(column, expected);
  double worst = 0.0;
  size_t where = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double part = std::fabs(actual[i] - expected[i]) / bounds[i];
    if (!(part <= worst)) worst = part, where = i;
    if (std::isnan(worst)) break;
  }
  tables_.note(Tables::kCertain, drawn_.problem, column, worst);
  if (worst <= 1.0) return "";
  char text[200];
  std::snprintf(text, sizeof text, "element %zu is %.9g, to be %.9g within %.3g\n", where, actual[where],
                expected[where], bounds[where]);
  return text;
}

}  // namespace lasp_test
