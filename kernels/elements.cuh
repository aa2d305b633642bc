// Launches of one thread for each element of something.
#pragma once

#include "device.cuh"

namespace lasp::gpu {

inline constexpr int kThreads = 256;

__device__ inline int64_t thread_index(int64_t first) { return (first + blockIdx.x) * kThreads + threadIdx.x; }

template <class... Parameters, class... Arguments>
int launch_elements(void (*kernel)(int64_t, Parameters...), int64_t count, Stream stream, Arguments... arguments) {
  return launch_blocks(kernel, ceil_div(count, kThreads), kThreads, 0, stream, arguments...);
}

}  // namespace lasp::gpu
