// For the tests of the kernel table: what a block of the backward walks with per-channel decay needs.
#pragma once

#include <cstdint>

namespace lasp::gpu::mma::channel {

int walk_shared_bytes(int32_t rows, int32_t columns);

}  // namespace lasp::gpu::mma::channel
