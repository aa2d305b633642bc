// The progress of a run: one line that redraws itself on a terminal, about ten plain lines elsewhere.
#pragma once

#include <cstdint>
#include <string>

#include "trainer.hpp"

namespace train_lm {

class Progress {
 public:
  Progress(std::string label, int steps, std::int64_t tokens_per_step);
  void show(int step, const StepRecord &record);

 private:
  std::string label_;
  int steps_;
  double tokens_per_step_;
  bool terminal_;
  double seconds_ = 0.0;
};

}  // namespace train_lm
