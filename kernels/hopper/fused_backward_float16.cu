// The backward kernel for float16 tensors.
#include "fused_backward.cuh"

namespace lasp::gpu::hopper::fused {

int enqueue_float16(const Params &params, int64_t blocks, Stream stream) {
  return enqueue<__half, 1>(params, blocks, stream);
}

}  // namespace lasp::gpu::hopper::fused
