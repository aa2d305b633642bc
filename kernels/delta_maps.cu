// The affine maps of the delta rule: what no walk writes of them, and what their products read.
#include "delta.h"
#include "device.cuh"
#include "marks.cuh"

namespace lasp::gpu {
namespace {

constexpr int kThreads = 256;

// The segment of a path that leaves the rank, of which there is one at most; null: none. By the whole block.
__device__ const Segment *leaving_segment(const DeltaMaps &p, int64_t path) {
  __shared__ int64_t found;
  if (threadIdx.x == 0) found = -1;
  __syncthreads();
  for (int64_t at = threadIdx.x; at < p.num_segments; at += kThreads) {
    const Segment &segment = p.segments[at];
    if (segment.path == path && segment.num_runs > 0 && segment.produces[p.reversed]) found = at;
  }
  __syncthreads();
  return found < 0 ? nullptr : p.segments + found;
}

// What a walk gives is the identity until then.
constexpr int kPieces = 8;  // of a path and head, a block each
__global__ void __launch_bounds__(kThreads) maps_kernel(int64_t first, DeltaMaps p, Mark mark) {
  leave_mark(mark, first);
  const int64_t item = (first + blockIdx.x) / kPieces, keys = p.shape.dim_k, square = keys * keys;
  const int64_t begin = (first + blockIdx.x) % kPieces * kThreads + threadIdx.x, step = kPieces * kThreads;
  const Segment *const segment = leaving_segment(p, item / p.shape.heads);
  const bool through = segment != nullptr && !segment->begins[0] && !segment->begins[1];
  const float *const cached = through && p.cached != nullptr ? p.cached + item * square : nullptr;
  const float diagonal = segment != nullptr && !through ? 0.0f : 1.0f;
  for (int64_t at = begin; at < keys * p.shape.dim_v; at += step) p.state[item * keys * p.shape.dim_v + at] = 0;
  for (int64_t at = begin; at < square; at += step) {
    const int64_t row = at / keys, column = at % keys;
    p.transition[item * square + at] = cached != nullptr ? cached[column * keys + row]
                                       : row == column   ? diagonal
                                                         : 0.0f;
  }
}

__global__ void copy_kernel(int64_t first, float *to, const float *from, int64_t floats, Mark mark) {
  leave_mark(mark, first);
  const int64_t at = (first + blockIdx.x) * kThreads + threadIdx.x;
  if (at < floats) to[at] = from != nullptr ? from[at] : 0.0f;
}

__global__ void runs_kernel(int64_t first, DeltaRuns p) {
  const int64_t at = (first + blockIdx.x) * kThreads + threadIdx.x;
  if (at < p.num_stretches && p.stretches[at].length > 0) {
    Run &stretch = p.stretches[at];
    stretch.entered = p.segments[stretch.segment].consumes[1];
    stretch.checkpoint = static_cast<int32_t>(stretch.state);
  }
  for (int reversed = 0; at < p.num_runs && reversed < 2; ++reversed) {
    Run &run = p.runs[reversed][at];
    if (run.length == 0) continue;
    const int64_t parts = (run.length + p.spacing - 1) / p.spacing;
    run.checkpoint = static_cast<int32_t>(run.state - (reversed != 0 ? parts - 1 : 0));
    run.state = run.entered != 0 ? run.path : p.segments[run.segment].sequence;
  }
}

__global__ void operand_kernel(int64_t first, DeltaOperand p) {
  const int64_t head = first + blockIdx.x, square = int64_t{p.dim_k} * p.dim_k, size = int64_t{p.dim_k} * p.columns;
  bool any = false;
  for (int64_t at = threadIdx.x; at < square; at += kThreads) any = any || p.later[head * square + at] != 0;
  const bool keeps = __syncthreads_or(any) != 0;
  for (int64_t at = threadIdx.x; at < size; at += kThreads)
    p.to[head * size + at] = keeps ? p.from[head * size + at] : 0.0f;
}

}  // namespace

int launch_delta_maps(const DeltaMaps &p, const Mark &mark, Stream stream) {
  const int64_t blocks = p.shape.rows * p.shape.heads * kPieces;
  return launch_blocks(maps_kernel, blocks, kThreads, 0, stream, p, mark);
}
int launch_delta_maps(const DeltaMaps &p, Stream stream) { return launch_delta_maps(p, {}, stream); }

int launch_copy(float *to, const float *from, int64_t floats, const Mark &mark, Stream stream) {
  return launch_blocks(copy_kernel, ceil_div(floats, kThreads), kThreads, 0, stream, to, from, floats, mark);
}

int launch_delta_runs(const DeltaRuns &p, Stream stream) {
  return launch_blocks(runs_kernel, ceil_div(std::max(p.num_runs, p.num_stretches), kThreads), kThreads, 0, stream,
                       p);
}

int launch_delta_operand(const DeltaOperand &p, Stream stream) {
  return launch_blocks(operand_kernel, p.heads, kThreads, 0, stream, p);
}

int load_delta_maps() { return load_kernels(maps_kernel, copy_kernel, runs_kernel, operand_kernel); }

}  // namespace lasp::gpu
