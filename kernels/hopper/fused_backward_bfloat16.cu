// The backward kernel for bfloat16 tensors.
#include "fused_backward.cuh"

namespace lasp::gpu::hopper::fused {

int enqueue_bfloat16(const Params &params, int64_t blocks, Stream stream) {
  return enqueue<__nv_bfloat16, 1>(params, blocks, stream);
}

}  // namespace lasp::gpu::hopper::fused
