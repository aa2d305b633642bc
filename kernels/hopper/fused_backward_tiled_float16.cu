// The backward kernel for float16 tensors; tiles of states of other dimensions.
#include "fused_backward.cuh"

namespace lasp::gpu::hopper::fused {

int enqueue_tiled_float16(const Params &params, int64_t blocks, Stream stream) {
  return enqueue<__half, kTiled>(params, blocks, stream);
}

}  // namespace lasp::gpu::hopper::fused
