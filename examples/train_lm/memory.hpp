// Memory of one rank, counted: every large array of a rank tells the rank's MemoryMeter.
#pragma once

#include <algorithm>
#include <cstddef>

namespace train_lm {

class MemoryMeter {
 public:
  void add(std::size_t bytes) { peak_ = std::max(peak_, now_ += bytes); }
  void remove(std::size_t bytes) { now_ -= bytes; }
  std::size_t now() const { return now_; }
  std::size_t peak() const { return peak_; }

 private:
  std::size_t now_ = 0, peak_ = 0;
};

}  // namespace train_lm
