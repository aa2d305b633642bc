#include "cuda/choice/kernel_table.h"
namespace lasp::cuda {
const char *sentence_of(KernelFamily family) {
  return family == KernelFamily::kTensorCores ? "tensor-core kernels" : "recurrent kernels in float32";
}
}  // namespace lasp::cuda
