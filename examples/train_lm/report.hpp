// What a run or a comparison showed: a table for people, CSV and JSON for programs.
#pragma once

#include <string>
#include <vector>

#include "bound.hpp"
#include "options.hpp"
#include "text.hpp"
#include "trainer.hpp"

namespace train_lm {

// One run, or a reference and the run that is compared with it.
struct Report {
  const Options *options = nullptr;
  const Text *text = nullptr;
  std::vector<RunResult> runs;
  std::vector<double> bound;  // of the curves' difference; empty for one run
  CurveDifference difference;
  double seconds = 0.0;  // of everything
};

std::string label(const RunResult &run);
void print_table(const Report &report);
void print_sample(const RunResult &run);

// What must hold, as sentences about what does not; empty when all is well.
std::vector<std::string> complaints(const Report &report);

std::string to_csv(const Report &report);
std::string to_json(const Report &report);
void write_file(const std::string &path, const std::string &content);  // throws

}  // namespace train_lm
