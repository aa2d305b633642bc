// Between the host side of the fused backward pass and its kernels, compiled one element type per file.
#pragma once

#include "fused_backward.h"

namespace lasp::gpu::hopper::fused {

struct Params;

// `blocks` is the grid. Returns a cudaError_t. *clusters, if not null: nothing is launched, only asked how many
// clusters the device holds at a time.
int enqueue_bfloat16(const Params &params, int32_t cluster, int64_t blocks, Stream stream, int *clusters);
int enqueue_float16(const Params &params, int32_t cluster, int64_t blocks, Stream stream, int *clusters);
// d_g from the slices' parts.
int launch_sum_parts(const FusedBackward &pass, Stream stream);
int load_sum_parts();

}  // namespace lasp::gpu::hopper::fused
