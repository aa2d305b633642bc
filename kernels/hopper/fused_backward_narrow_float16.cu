// The backward kernel for float16 tensors; states with V of 64.
#include "fused_backward.cuh"

namespace lasp::gpu::hopper::fused {

int enqueue_narrow_float16(const Params &params, int64_t blocks, Stream stream) {
  return enqueue_narrow<__half>(params, blocks, stream);
}

}  // namespace lasp::gpu::hopper::fused
