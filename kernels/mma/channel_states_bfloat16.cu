// The states pass with per-channel decay, of bfloat16 tensors.
#include "channel_states.cuh"
#include "channel_states.h"

namespace lasp::gpu::mma::channel {

int enqueue_states_bfloat16(const LinearPass &pass, float *factors, Stream stream) {
  return enqueue_states<__nv_bfloat16>(pass, factors, stream);
}
int load_states_bfloat16() { return load_states<__nv_bfloat16>(); }

int states_shared_bytes(int rows, int columns) {
  int bytes = 0;
  with_states_kernel<__nv_bfloat16>(rows, columns, false, [&](auto, auto layout) { return bytes = layout.kBytes; });
  return bytes;
}

}  // namespace lasp::gpu::mma::channel
