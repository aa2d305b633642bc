// The backward walks with per-channel decay, of bfloat16 tensors: one file for each type, so that they compile at
// once.
#include "channel_launch.cuh"

namespace lasp::gpu::mma::channel {

int enqueue_bfloat16(const Walk &walk, int64_t num_runs, bool reversed, Stream stream) {
  return enqueue<__nv_bfloat16>(walk, num_runs, reversed, stream);
}
int load_bfloat16() { return load<__nv_bfloat16>(); }

}  // namespace lasp::gpu::mma::channel
