// A mark by itself, where no other launch leaves it.
#include "marks.cuh"

namespace lasp::gpu {
namespace {

__global__ void mark_kernel(Mark mark) { leave_mark(mark); }

}  // namespace

int launch_mark(const Mark &mark, Stream stream) {
  if (mark.marks == nullptr) return cudaSuccess;
  mark_kernel<<<1, 1, 0, stream>>>(mark);
  return cudaGetLastError();
}

int load_marks() { return load_kernels(mark_kernel); }

}  // namespace lasp::gpu
