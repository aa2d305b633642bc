// The backward kernel for bfloat16 tensors; tiles of states of other dimensions.
#include "fused_backward.cuh"

namespace lasp::gpu::hopper::fused {

int enqueue_tiled_bfloat16(const Params &params, int64_t blocks, Stream stream) {
  return enqueue<__nv_bfloat16, kTiled>(params, blocks, stream);
}

}  // namespace lasp::gpu::hopper::fused
