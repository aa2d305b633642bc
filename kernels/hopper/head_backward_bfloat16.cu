// The backward kernel for bfloat16 tensors.
#include "head_backward.cuh"

namespace lasp::gpu::hopper::head {

int enqueue_bfloat16(const Params &params, int64_t blocks, Stream stream) {
  return enqueue<__nv_bfloat16>(params, blocks, stream);
}

}  // namespace lasp::gpu::hopper::head
