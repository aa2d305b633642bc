// For the tests of the backward walks with per-channel decay: one of the two alone.
#pragma once

#include "launch.h"

namespace lasp::gpu {

// Forward (dq, and dq's share of d_g) or reversed (dk and d_g).
int launch_channel_walk(KernelSet set, const ChannelBackward &pass, bool reversed, Stream stream);

}  // namespace lasp::gpu
