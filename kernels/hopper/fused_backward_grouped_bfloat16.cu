// The backward kernel for bfloat16 tensors; grouped heads.
#include "fused_backward.cuh"

namespace lasp::gpu::hopper::fused {

int enqueue_grouped_bfloat16(const Params &params, int64_t blocks, Stream stream, int *clusters) {
  if (params.members == 2) return enqueue<__nv_bfloat16, 2>(params, blocks, stream, clusters);
  if (params.members == 4) return enqueue<__nv_bfloat16, 4>(params, blocks, stream, clusters);
  return enqueue<__nv_bfloat16, 8>(params, blocks, stream, clusters);
}

}  // namespace lasp::gpu::hopper::fused
