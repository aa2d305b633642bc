// The backward kernel for bfloat16 tensors; grouped heads.
#include "fused_backward.cuh"

namespace lasp::gpu::hopper::fused {

int enqueue_grouped_bfloat16(const Params &params, int64_t blocks, Stream stream) {
  return enqueue_grouped<__nv_bfloat16>(params, blocks, stream);
}

}  // namespace lasp::gpu::hopper::fused
