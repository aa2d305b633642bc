// The channel pass as the host sees it: outputs and the gradient of v where decay is per channel, by wgmma.
#pragma once

#include "../launch.h"

namespace lasp::gpu::hopper {

// Why not these tensors, or null.
const char *channel_refusal(const LinearPass &pass);
// Of a (run, head); where K = V = 64 two heads share one.
int32_t channel_blocks_of(const LinearPass &pass);
int64_t channel_shared_bytes(int32_t k);  // of a block
int launch_channel_pass(const LinearPass &pass, Stream stream);
int load_channel_kernels();

}  // namespace lasp::gpu::hopper
