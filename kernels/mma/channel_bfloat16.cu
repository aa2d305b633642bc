// The backward walks with per-channel decay, of bfloat16 tensors: one file for each type, so that they compile at
// once.
#include "channel_backward.h"
#include "channel_launch.cuh"

namespace lasp::gpu::mma::channel {

int enqueue_bfloat16(const Walk &walk, int64_t num_runs, bool reversed, Stream stream) {
  return enqueue<__nv_bfloat16>(walk, num_runs, reversed, stream);
}
int load_bfloat16() { return load<__nv_bfloat16>(); }

int walk_shared_bytes(int32_t rows, int32_t columns) {
  if (rows == 128) return columns == 128 ? Layout<128, 128, true>::kBytes : Layout<128, 64, true>::kBytes;
  return columns == 128 ? Layout<64, 128, true>::kBytes : Layout<64, 64, true>::kBytes;
}

}  // namespace lasp::gpu::mma::channel
