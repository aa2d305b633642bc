// The backward walks with per-channel decay by wgmma, in float16.
#include "channel_backward.cuh"

namespace lasp::gpu::hopper {

int enqueue_channel_float16(const mma::channel::Walk &walk, const BackwardPass &pass, bool reversed,
                            Stream stream) {
  return channel_backward::enqueue<__half>(walk, pass, reversed, stream);
}
int load_channel_float16() { return channel_backward::load<__half>(); }

}  // namespace lasp::gpu::hopper
