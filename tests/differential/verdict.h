// Holds the results of one drawn problem to the oracle and to one rank's, and keeps what it measured.
#pragma once

#include <string>
#include <vector>

#include "differential/bounds.h"
#include "differential/decode.h"
#include "differential/tables.h"

namespace lasp_test {

class Verdict {
 public:
  Verdict(const Drawn &drawn, const CaseData &data, uint64_t index, Tables &tables);
  // "" or one line for each thing that is wrong.
  std::string of_passes(const Outputs &out);
  std::string of_decoding(const Decoded &decoded);
  // Results of W ranks beside those of one. Both being right, nothing can be wrong here but in exact problems and
  // in those with a segment, whose results must be equal bit for bit.
  std::string of_ranks(const Outputs &many, const Outputs &one);

 private:
  std::string tensor(int column, const std::vector<double> &expected, const std::vector<double> &actual);
  std::string not_exact(int column, const std::vector<double> &expected, const std::vector<double> &actual) const;
  double parts_of(const std::vector<double> &x, double of_terms) const;
  std::string whole_beyond(int column, const std::vector<double> &expected, const std::vector<double> &actual);
  std::string element_beyond(int column, const std::vector<double> &expected, const std::vector<double> &actual);

  const Drawn &drawn_;
  const uint64_t index_;
  Tables &tables_;
  const Expected expected_;
  const Bounds bounds_;
};

}  // namespace lasp_test
