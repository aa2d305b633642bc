// The backward walks with per-channel decay by wgmma, in bfloat16.
#include "channel_backward.cuh"

namespace lasp::gpu::hopper {

int enqueue_channel_bfloat16(const mma::channel::Walk &walk, const BackwardPass &pass, bool reversed,
                             Stream stream) {
  return channel_backward::enqueue<__nv_bfloat16>(walk, pass, reversed, stream);
}
int load_channel_bfloat16() { return channel_backward::load<__nv_bfloat16>(); }

}  // namespace lasp::gpu::hopper
