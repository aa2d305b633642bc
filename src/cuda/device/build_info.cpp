// What lasp_get_build_info says of the CUDA backend.
#include "base/build_info.h"

namespace lasp::build {

// Known when it is compiled: asking the driver would start CUDA, which is left to the first context.
bool has_cuda() { return true; }

const char *cuda() { return "toolkit " LASP_CUDA_TOOLKIT ", compiled for " LASP_CUDA_ARCHITECTURES; }

}  // namespace lasp::build
