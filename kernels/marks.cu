// One thread each. Several graphs may be replayed at once: counts are added up by the device, and only read by the
// host.
#include "marks.h"

#include "device.cuh"

namespace lasp::gpu {
namespace {

__global__ void begin_mark_kernel(ReplayMarks *marks, int32_t peer) {
  *static_cast<volatile int32_t *>(&marks->peer) = peer;
  __threadfence_system();
  atomicAdd(&marks->begun, 1);
}

__global__ void end_mark_kernel(ReplayMarks *marks) { atomicAdd(&marks->ended, 1); }

}  // namespace

int launch_begin_mark(ReplayMarks *marks, int32_t peer, Stream stream) {
  begin_mark_kernel<<<1, 1, 0, stream>>>(marks, peer);
  return cudaGetLastError();
}

int launch_end_mark(ReplayMarks *marks, Stream stream) {
  end_mark_kernel<<<1, 1, 0, stream>>>(marks);
  return cudaGetLastError();
}

int load_marks() { return load_kernels(begin_mark_kernel, end_mark_kernel); }

}  // namespace lasp::gpu
