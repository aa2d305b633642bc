// The families of kernels, as lasp_plan_describe names them.
#pragma once

#include <cstdint>

namespace lasp::cuda {

enum class KernelFamily : int32_t { kTensorCores, kRecurrent };
const char *sentence_of(KernelFamily family);

}  // namespace lasp::cuda
