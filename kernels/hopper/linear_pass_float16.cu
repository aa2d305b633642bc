// The Hopper linear pass for float16 tensors.
#include "linear_pass.cuh"

namespace lasp::gpu::hopper {

int enqueue_float16(const PassParams &params, PassShape shape, int64_t blocks, Stream stream, int *clusters) {
  return enqueue_typed<__half>(params, shape, blocks, stream, clusters);
}

}  // namespace lasp::gpu::hopper
