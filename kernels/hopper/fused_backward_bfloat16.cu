// The fused backward kernel for bfloat16 tensors.
#include "fused_backward.cuh"

namespace lasp::gpu::hopper::fused {

int enqueue_bfloat16(const Params &params, int32_t cluster, int64_t blocks, Stream stream, int *clusters) {
  return enqueue_typed<__nv_bfloat16>(params, cluster, blocks, stream, clusters);
}

}  // namespace lasp::gpu::hopper::fused
