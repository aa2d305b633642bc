// Between the host side of the backward kernel and its kernels, compiled one element type per file.
#pragma once

#include "../launch.h"

namespace lasp::gpu::hopper::fused {

struct Params;

// `blocks` is the grid; none only loads the kernel. Returns a cudaError_t.
int enqueue_bfloat16(const Params &params, int64_t blocks, Stream stream);
int enqueue_float16(const Params &params, int64_t blocks, Stream stream);
// The same for grouped heads, by clusters; `clusters` not null: how many of them the device holds at once, no
// launch.
int enqueue_grouped_bfloat16(const Params &params, int64_t blocks, Stream stream);
int enqueue_grouped_float16(const Params &params, int64_t blocks, Stream stream);
// The same for states that go by tiles.
int enqueue_tiled_bfloat16(const Params &params, int64_t blocks, Stream stream);
int enqueue_tiled_float16(const Params &params, int64_t blocks, Stream stream);
// The same for states with V of 64.
int enqueue_narrow_bfloat16(const Params &params, int64_t blocks, Stream stream);
int enqueue_narrow_float16(const Params &params, int64_t blocks, Stream stream);
// d_g from what the walks of a launch have left, and the launches before it.
int gather_decay_gradient(const Params &params, const FusedBackward &pass, Stream stream);
int load_decay_gradient_kernels();

}  // namespace lasp::gpu::hopper::fused
