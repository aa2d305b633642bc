// Between the host side of the backward walks with per-channel decay and their kernels, compiled one element type
// per file.
#pragma once

#include "channel_layout.cuh"

namespace lasp::gpu::mma::channel {

// A walk over all runs and heads. They return a cudaError_t.
int enqueue_bfloat16(const Walk &walk, int64_t num_runs, bool reversed, Stream stream);
int enqueue_float16(const Walk &walk, int64_t num_runs, bool reversed, Stream stream);
int load_bfloat16();
int load_float16();

}  // namespace lasp::gpu::mma::channel
