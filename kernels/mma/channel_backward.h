// For the tests of the backward walks with per-channel decay: one of the two alone, and what a block of them needs.
#pragma once

#include "../launch.h"

namespace lasp::gpu::mma {

// Forward (dq, and dq's share of d_g) or reversed (dk and d_g).
int launch_channel_walk(const ChannelBackward &pass, bool reversed, Stream stream);
int channel_walk_shared_bytes(int32_t rows, int32_t columns);

}  // namespace lasp::gpu::mma
