// For the test of the backward walks with per-channel decay: one of the two alone.
#pragma once

#include "../launch.h"

namespace lasp::gpu::mma {

// Forward (dq, and dq's share of d_g) or reversed (dk and d_g).
int launch_channel_walk(const ChannelBackward &pass, bool reversed, Stream stream);

}  // namespace lasp::gpu::mma
