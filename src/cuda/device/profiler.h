// Names for a profiler's time line, by NVTX, which does nothing while no profiler is attached.
#pragma once

namespace lasp::cuda {

class Range {
 public:
  // Null: no range.
  explicit Range(const char *name);
  ~Range();
  Range(const Range &) = delete;
  Range &operator=(const Range &) = delete;

 private:
  bool named_;
};

}  // namespace lasp::cuda
