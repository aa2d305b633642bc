// Bounds are the suite's (support/measure.cpp), with two additions.
//
// They speak of means over many elements. A tensor whose norm rests on fewer than 64 elements, (sum x^2)^2 / sum
// x^4, and that exceeds its bound is held to what is certain instead of what is likely: float32 arithmetic errs by
// at most 2e-6 of the sum of the sizes of the terms (the same derivation, with nothing gained by terms of either
// sign: they may cancel in one element, not in a thousand), and rounding the result errs by half a unit of the last
// place, 2^-8 of a bfloat16 at most and 2^-11 of a float16. The sums of sizes are the oracle's own results for |q|,
// |k|, |v|, |do| and |states|: nothing else in it is ever negative.
//
// lasp_step multiplies the state by a float32 factor exp(g) at each token. The factor's rounding, at most u = 2^-24
// of it, is the same at every token where g is, so over n tokens it adds up to n u.
#include "differential/verdict.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iomanip>

#include "support/dtype.h"

namespace lasp_test {
namespace {

constexpr double kFew = 64.0;
constexpr double kFloat32 = 2e-6;
constexpr const char *kDtypes[] = {"float32", "bfloat16", "float16"};
constexpr const char *kDecays[] = {"none", "head", "scalar", "channel"};
constexpr const char *kSteps[] = {"o of step", "state of step"};

const char *name_of(int column) { return column < kTensors ? kTensorNames[column] : kSteps[column - kTensors]; }

TensorId tensor_of(int column) {
  return column < kTensors ? static_cast<TensorId>(column) : column == kStepO ? kO : kFinalState;
}

int32_t dtype_of(const Case &c, int column) {
  const TensorId id = tensor_of(column);
  if (id == kFinalState || id == kDInitialState) return LASP_FLOAT32;
  if (id == kDDecay) return c.decay == LASP_DECAY_HEAD ? int32_t{LASP_FLOAT32} : c.decay_dtype;
  return c.dtype;
}

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

CaseData sizes_of(CaseData data) {
  for (auto tensor : {&CaseData::q, &CaseData::k, &CaseData::v, &CaseData::d_o, &CaseData::initial_state,
                      &CaseData::d_final_state})
    for (float &x : data.*tensor) x = std::fabs(x);
  return data;
}

}  // namespace

Verdict::Verdict(const Drawn &drawn, const CaseData &data, uint64_t index, Errors &errors)
    : drawn_(drawn), data_(data), index_(index), errors_(errors), expected_(expected_of(drawn.problem, data)) {}

std::string Verdict::of_passes(const Outputs &out) {
  Expected expected = expected_;
  const RunOptions &options = drawn_.options;
  for (const TensorId id : {kDq, kDk, kDv, kDDecay, kDInitialState})
    if (!options.backward) expected.tensors[id].clear();
  for (const TensorId id : {kFinalState, kDDecay, kDInitialState})
    if (!options.optional_outputs) expected.tensors[id].clear();
  std::string wrong;
  for (int id = 0; id < kTensors; ++id)
    wrong += tensor(id, expected.tensors[id], out.tensors[id], out.tensor_cores);
  return wrong;
}

std::string Verdict::of_decoding(const Decoded &decoded) {
  const Case &c = drawn_.problem;
  return decoded.complaints +
         tensor(kStepO, part_of_rows(expected_.tensors[kO], c, drawn_.prefill, c.tokens), decoded.o, false) +
         tensor(kStepState, expected_.tensors[kFinalState], decoded.state, false);
}

std::string Verdict::of_ranks(const Outputs &many, const Outputs &one) {
  const Case &c = drawn_.problem;
  std::string wrong;
  for (int id = 0; id < kTensors; ++id) {
    if (one.tensors[id].size() != many.tensors[id].size()) return "one rank gives other sizes\n";
    const double size = id == kDDecay ? expected_.d_decay_size : 0.0;
    const double error = relative_error(one.tensors[id], many.tensors[id], size);
    if (c.exact && error != 0.0) wrong += std::string(name_of(id)) + ": one rank gives another exact result\n";
    if (size == 0.0 && effective_elements(one.tensors[id]) < kFew) continue;
    if (size == 0.0 && below_normal(dtype_of(c, id), one.tensors[id])) continue;
    errors_.note(dtype_of(c, id), c.decay, id, error, true);
  }
  return wrong;
}

// The suite's comparison, of one tensor alone.
std::string Verdict::tensor(int column, const std::vector<double> &expected, const std::vector<double> &actual,
                            bool tensor_cores) {
  const TensorId id = tensor_of(column);
  Expected only;
  only.tensors[id] = expected;
  if (id == kDDecay) only.d_decay_size = expected_.d_decay_size;
  Outputs given;
  given.tensors[id] = actual;
  given.tensor_cores = tensor_cores;
  std::string wrong = compare(drawn_.problem, only, given);
  if (expected.empty() || expected.size() != actual.size())
    return wrong.empty() ? "" : name_of(column) + (": " + wrong);
  const Case &c = drawn_.problem;
  const double size = only.d_decay_size, error = relative_error(expected, actual, size);
  const double bound = error_bound(c, id, tensor_cores), drift = column < kTensors ? 0.0 : drift_of_steps();
  const bool few = effective_elements(expected) < kFew;
  if (!wrong.empty() && !c.exact && error <= bound + drift) {
    wrong.clear();
    errors_.note_drift();
  }
  bool certain = false;
  if (!wrong.empty() && few && !c.exact) {
    std::vector<double> difference(expected.size());
    for (size_t i = 0; i < expected.size(); ++i) difference[i] = actual[i] - expected[i];
    if (norm(difference) <= certain_bound(column, expected, kFloat32 + drift)) wrong.clear(), certain = true;
  }
  if (few && size == 0.0) {
    errors_.note_small(certain);
  } else if (!c.exact && (size > 0.0 || !below_normal(dtype_of(c, column), expected))) {
    errors_.note(dtype_of(c, column), c.decay, column, error, false);
    errors_.note_ratio(error / (bound + drift), index_);
  }
  if (wrong.empty()) return "";
  return std::string(name_of(column)) + ", " + std::to_string(expected.size()) + " elements: " + wrong;
}

double Verdict::drift_of_steps() const {
  const Case &c = drawn_.problem;
  return c.decay == LASP_DECAY_NONE ? 0.0 : 0x1p-24 * static_cast<double>(c.tokens - drawn_.prefill);
}

double Verdict::certain_bound(int column, const std::vector<double> &expected, double arithmetic) {
  const int32_t dtype = dtype_of(drawn_.problem, column);
  const double rounding = dtype == LASP_BFLOAT16 ? 0x1p-8 : dtype == LASP_FLOAT16 ? 0x1p-11 : 0.0;
  const double smallest = dtype == LASP_FLOAT16 ? 0x1p-25 : 0.0;
  return arithmetic * norm(sizes(column)) + rounding * norm(expected) +
         smallest * std::sqrt(static_cast<double>(expected.size()));
}

const std::vector<double> &Verdict::sizes(int column) {
  const Case &c = drawn_.problem;
  if (!sizes_) {
    Expected all = expected_of(c, sizes_of(data_));
    sizes_ = std::move(all.tensors);
  }
  if (column != kStepO) return (*sizes_)[tensor_of(column)];
  step_sizes_ = part_of_rows((*sizes_)[kO], c, drawn_.prefill, c.tokens);
  return step_sizes_;
}

void Errors::note(int32_t dtype, int32_t decay, int column, double error, bool of_ranks) {
  auto &table = of_ranks ? ranks_ : oracle_;
  auto &row = table
                  .try_emplace({dtype, decay},
                               [] {
                                 std::array<double, kColumns> none;
                                 none.fill(-1.0);
                                 return none;
                               }())
                  .first->second;
  row[static_cast<size_t>(column)] = std::max(row[static_cast<size_t>(column)], error);
}

void Errors::note_ratio(double ratio, uint64_t index) {
  if (ratio > ratio_) ratio_ = ratio, ratio_index_ = index;
}

void Errors::print(std::ostream &out, const Table &table) {
  out << "  dtype     decay    ";
  for (int column = 0; column < kColumns; ++column) out << std::setw(17) << std::left << name_of(column);
  out << "\n";
  for (const auto &[row, errors] : table) {
    out << "  " << std::left << std::setw(10) << kDtypes[std::get<0>(row)] << std::setw(9)
        << kDecays[std::get<1>(row)];
    for (const double error : errors) {
      char text[16] = "-";
      if (error >= 0.0) std::snprintf(text, sizeof text, "%.1e", error);
      out << std::setw(17) << text;
    }
    out << "\n";
  }
}

void Errors::print(std::ostream &out) const {
  out << "\nWorst relative error (Frobenius) against the float64 oracle, by the tensor's own dtype; tensors of "
      << kFew << " effective elements and more (verdict.cpp)\n";
  print(out, oracle_);
  out << "\nWorst relative difference between W ranks and one rank, likewise\n";
  print(out, ranks_);
  char text[64];
  std::snprintf(text, sizeof text, "%.2f", ratio_);
  out << "\nNearest to its bound: " << text << " of it, in problem " << ratio_index_
      << ". Smaller tensors: " << small_ << ", of which " << certain_
      << " were held to the certain bound; results of lasp_step that needed the drift of n u: " << drift_ << "\n";
}

}  // namespace lasp_test
