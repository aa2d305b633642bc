// The backward kernel for float16 tensors; grouped heads.
#include "fused_backward.cuh"

namespace lasp::gpu::hopper::fused {

int enqueue_grouped_float16(const Params &params, int64_t blocks, Stream stream) {
  return enqueue_grouped<__half>(params, blocks, stream);
}

}  // namespace lasp::gpu::hopper::fused
