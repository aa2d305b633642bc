// The backward walks with per-channel decay, of float16 tensors: one file for each type, so that they compile at
// once.
#include "channel_launch.cuh"

namespace lasp::gpu::mma::channel {

int enqueue_float16(const Walk &walk, int64_t num_runs, bool reversed, Stream stream) {
  return enqueue<__half>(walk, num_runs, reversed, stream);
}
int load_float16() { return load<__half>(); }

}  // namespace lasp::gpu::mma::channel
