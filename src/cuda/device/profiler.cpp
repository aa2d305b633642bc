#include "cuda/device/profiler.h"

#include <nvtx3/nvToolsExt.h>

namespace lasp::cuda {

Range::Range(const char *name) : named_(name != nullptr) {
  if (named_) nvtxRangePushA(name);
}

Range::~Range() {
  if (named_) nvtxRangePop();
}

}  // namespace lasp::cuda
