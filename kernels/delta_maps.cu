// The affine maps of the delta rule: what no walk writes of them, and what their products read.
#include "delta.h"
#include "device.cuh"

namespace lasp::gpu {
namespace {

constexpr int kThreads = 256;

__global__ void empty_maps_kernel(int64_t first, DeltaMaps p) {
  const int64_t at = first * kThreads + int64_t{blockIdx.x} * kThreads + threadIdx.x, keys = p.shape.dim_k;
  const int64_t heads = p.shape.rows * p.shape.heads;
  if (at < heads * keys * p.shape.dim_v) p.state[at] = 0;
  if (at < heads * keys * keys) p.transition[at] = at / keys % keys == at % keys ? 1.0f : 0.0f;
}

// After it, since a path has but one segment that produces.
__global__ void segment_maps_kernel(int64_t first, DeltaMaps p) {
  const int64_t item = first + blockIdx.x, keys = p.shape.dim_k;
  const Segment &segment = p.segments[item / p.shape.heads];
  if (segment.num_runs == 0 || !segment.produces[p.reversed]) return;
  const bool through = !segment.begins[0] && !segment.begins[1];
  if (through && p.cached == nullptr) return;  // a walk's
  const int64_t base = (segment.path * p.shape.heads + item % p.shape.heads) * keys * keys;
  for (int64_t at = threadIdx.x; at < keys * keys; at += kThreads)
    p.transition[base + at] = through ? p.cached[base + at % keys * keys + at / keys] : 0.0f;
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

int launch_delta_maps(const DeltaMaps &p, Stream stream) {
  const int64_t keys = p.shape.dim_k, most = std::max<int64_t>(keys, p.shape.dim_v);
  const int64_t elements = p.shape.rows * p.shape.heads * keys * most;
  if (const int error = launch_blocks(empty_maps_kernel, ceil_div(elements, kThreads), kThreads, 0, stream, p))
    return error;
  return launch_blocks(segment_maps_kernel, p.num_segments * p.shape.heads, kThreads, 0, stream, p);
}

int launch_delta_runs(const DeltaRuns &p, Stream stream) {
  return launch_blocks(runs_kernel, ceil_div(std::max(p.num_runs, p.num_stretches), kThreads), kThreads, 0, stream,
                       p);
}

int launch_delta_operand(const DeltaOperand &p, Stream stream) {
  return launch_blocks(operand_kernel, p.heads, kThreads, 0, stream, p);
}

int load_delta_maps() { return load_kernels(empty_maps_kernel, segment_maps_kernel, runs_kernel, operand_kernel); }

}  // namespace lasp::gpu
