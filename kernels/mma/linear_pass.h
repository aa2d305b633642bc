// The linear pass by mma.sync, for compute capability 8.0 and later, as the host sees it. Also what its own test
// asks for: a launch with a given number of chunks in shared memory.
#pragma once

#include "../launch.h"

namespace lasp::gpu::mma {

// Why not these tensors, or null.
const char *refusal(const LinearPass &pass);
// Of a block, with as few chunks in it as there may be.
int64_t least_shared_bytes(const LinearPass &pass);
// Of a (run, head).
int32_t blocks_of(const LinearPass &pass);
// Loaded before: load_linear_pass_kernels.
int launch_linear_pass(const LinearPass &pass, Stream stream);
int launch_linear_pass(const LinearPass &pass, int32_t stages, Stream stream);
int load_linear_pass_kernels();

}  // namespace lasp::gpu::mma
