// Between the host side of the states pass with per-channel decay and its kernel, compiled one element type per
// file.
#pragma once

#include "../launch.h"

namespace lasp::gpu::mma::channel {

// A cudaError_t.
int enqueue_states_bfloat16(const LinearPass &pass, float *factors, Stream stream);
int enqueue_states_float16(const LinearPass &pass, float *factors, Stream stream);
int load_states_bfloat16();
int load_states_float16();
int states_shared_bytes(int rows, int columns);

}  // namespace lasp::gpu::mma::channel
