// The Hopper linear pass for bfloat16 tensors.
#include "linear_pass.cuh"

namespace lasp::gpu::hopper {

int enqueue_bfloat16(const PassParams &params, PassShape shape, int64_t blocks, Stream stream, int *clusters) {
  return enqueue_typed<__nv_bfloat16>(params, shape, blocks, stream, clusters);
}

}  // namespace lasp::gpu::hopper
