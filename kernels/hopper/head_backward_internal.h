// Between the host side of the backward kernel and its kernels, compiled one element type per file.
#pragma once

#include "head_backward.h"

namespace lasp::gpu::hopper::head {

struct Params;

// `blocks` is the grid; none only loads the kernel. Returns a cudaError_t.
int enqueue_bfloat16(const Params &params, int64_t blocks, Stream stream);
int enqueue_float16(const Params &params, int64_t blocks, Stream stream);

}  // namespace lasp::gpu::hopper::head
