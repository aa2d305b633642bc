// The backward kernel whose blocks hold a head's whole state, for its own test.
#pragma once

#include "../launch.h"

namespace lasp::gpu::hopper {
// All of FusedBackward but d_g, which must be null.
int launch_head_backward(const FusedBackward &pass, Stream stream);
// Loads its kernels into the current context.
int load_head_backward();
}  // namespace lasp::gpu::hopper
