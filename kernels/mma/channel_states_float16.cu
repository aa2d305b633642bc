// The states pass with per-channel decay, of float16 tensors.
#include "channel_states.cuh"
#include "channel_states.h"

namespace lasp::gpu::mma::channel {

int enqueue_states_float16(const LinearPass &pass, float *factors, Stream stream) {
  return enqueue_states<__half>(pass, factors, stream);
}
int load_states_float16() { return load_states<__half>(); }

}  // namespace lasp::gpu::mma::channel
