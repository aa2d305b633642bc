// The backward walks with per-channel decay by wgmma (channel_backward.cuh): K of 128s, V of 64s; or K of 64, V
// of 64.
#pragma once

#include "../launch.h"

namespace lasp::gpu::mma::channel {
struct Walk;
}

namespace lasp::gpu::hopper {

const char *channel_backward_refusal(const ChannelBackward &pass);
int64_t channel_backward_shared_bytes(int32_t rows, int32_t columns, bool reversed);

// A walk over all runs and heads of `pass`, compiled one element type per file. They return a cudaError_t.
int enqueue_channel_bfloat16(const mma::channel::Walk &walk, const BackwardPass &pass, bool reversed,
                             Stream stream);
int enqueue_channel_float16(const mma::channel::Walk &walk, const BackwardPass &pass, bool reversed, Stream stream);
int load_channel_bfloat16();
int load_channel_float16();

}  // namespace lasp::gpu::hopper
