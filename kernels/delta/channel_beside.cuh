// A walk that goes on while its chunks are still prepared, where decay is per channel. A walk of one run leaves
// many multiprocessors idle, and a chunk's preparation needs no state. So the two overlap:
//
//   multiprocessors 0 to walks - 1    | chunks, the first `early` | the walk, from chunk to chunk      |
//   the others                        | chunks                    | the rest of the chunks             |
//
// Blocks of the preparation take chunks in the order of the walk, and tell of each that is done. The walk is a
// dependent launch, which begins when all blocks of the preparation have begun: so none of those that it waits for
// waits for it. The walk's blocks find room where the others have left. If they do not, they begin later.
#pragma once

#include <cuda_runtime_api.h>

#include <cuda/atomic>

#include "../hopper/ptx.cuh"
#include "channel_walks.h"

namespace lasp::gpu::delta_hopper::channel {

// By all blocks: a dependent launch may begin now.
__device__ __forceinline__ void begin_dependents() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
// Until the launch before this one has ended. Each block of a dependent launch waits so before it ends, also one
// that has nothing to do: launches after it may rely on both.
__device__ __forceinline__ void wait_for_launch_before() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

__device__ __forceinline__ int32_t multiprocessor() {
  uint32_t id;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(id));
  return int32_t(id);
}

using Ready = cuda::atomic_ref<int32_t, cuda::thread_scope_device>;

// By one thread, after a barrier of all that have prepared: chunk `at` of `ready` is there.
__device__ __forceinline__ void tell_ready(const Beside &beside, int64_t at) {
  Ready(beside.ready[at]).store(1, cuda::memory_order_release);
}
// The chunks of a walk, for whole warps that copy them: where the first of them has its place, how far the next one
// is, and how many there are.
struct Prepared {
  const Beside &beside;
  const int64_t at;
  const int32_t step, chunks;
  int32_t known = 0;  // so many are there

  // Until chunk n of the walk is there. A look takes as long as a copy does, so it is at 32 of them.
  __device__ __forceinline__ void wait(int n) {
    if (!beside.ready || n < known) return;
    do {
      const int mine = n + int(threadIdx.x % 32);
      const bool there =
          mine < chunks && Ready(beside.ready[at + int64_t{mine} * step]).load(cuda::memory_order_acquire) != 0;
      known = n + __ffs(int(~__ballot_sync(~0u, there))) - 1;
      if (known < n) known = n + 32;  // all of them
    } while (known == n);
    __syncwarp();
    hopper::fence_async_proxy_global();
  }
};

// A launch of `blocks` blocks, which may begin before the one before it has ended.
template <typename... Parameters, typename... Arguments>
int launch_dependent(void (*kernel)(int64_t, Parameters...), int64_t blocks, int threads, size_t shared,
                     Stream stream, const Arguments &...arguments) {
  if (blocks == 0) return cudaSuccess;
  cudaLaunchAttribute early = {};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(unsigned(blocks)), config.blockDim = dim3(unsigned(threads));
  config.dynamicSmemBytes = shared, config.stream = stream;
  config.attrs = &early, config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, int64_t{0}, arguments...);
}

}  // namespace lasp::gpu::delta_hopper::channel
