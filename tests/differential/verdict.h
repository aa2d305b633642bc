// Holds the results of one drawn problem to the oracle and keeps the worst errors for the tables of a run.
#pragma once

#include <array>
#include <map>
#include <optional>
#include <ostream>
#include <string>
#include <tuple>

#include "differential/decode.h"
#include "support/measure.h"

namespace lasp_test {

// The columns of the tables: the tensors of forward and backward, and two of lasp_step.
constexpr int kStepO = kTensors, kStepState = kTensors + 1, kColumns = kTensors + 2;

class Errors {
 public:
  void note(int32_t dtype, int32_t decay, int column, double error, bool of_ranks);
  void note_ratio(double ratio, uint64_t index);
  void note_small(bool by_certain_bound) { ++small_, certain_ += by_certain_bound; }
  void note_drift() { ++drift_; }
  void print(std::ostream &out) const;

 private:
  using Row = std::tuple<int32_t, int32_t>;  // dtype of the tensors, decay kind
  using Table = std::map<Row, std::array<double, kColumns>>;
  static void print(std::ostream &out, const Table &table);

  Table oracle_, ranks_;
  int64_t small_ = 0, certain_ = 0, drift_ = 0;
  double ratio_ = 0.0;
  uint64_t ratio_index_ = 0;
};

class Verdict {
 public:
  Verdict(const Drawn &drawn, const CaseData &data, uint64_t index, Errors &errors);
  // "" or one line for each thing that is wrong.
  std::string of_passes(const Outputs &out);
  std::string of_decoding(const Decoded &decoded);
  // Records how far the results of W ranks are from those of one. Both being right, nothing can be wrong here but
  // in exact problems, whose results must be equal.
  std::string of_ranks(const Outputs &many, const Outputs &one);

 private:
  std::string tensor(int column, const std::vector<double> &expected, const std::vector<double> &actual,
                     bool tensor_cores);
  double certain_bound(int column, const std::vector<double> &expected, double arithmetic);
  double drift_of_steps() const;
  const std::vector<double> &sizes(int column);

  const Drawn &drawn_;
  const CaseData &data_;
  const uint64_t index_;
  Errors &errors_;
  Expected expected_;
  std::optional<TensorSet> sizes_;
  std::vector<double> step_sizes_;
};

}  // namespace lasp_test
