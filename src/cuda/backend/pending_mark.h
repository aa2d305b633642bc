// The mark that a pass is to leave next (kernels/marks.h): by the next launch that can, else by one of its own.
#pragma once

#include <utility>

#include "kernels/marks.h"

namespace lasp::cuda {

class PendingMark {
 public:
  void set(const gpu::Mark &mark) { mark_ = mark; }
  // Who takes it leaves it.
  gpu::Mark take() { return std::exchange(mark_, {}); }

 private:
  gpu::Mark mark_;
};

}  // namespace lasp::cuda
