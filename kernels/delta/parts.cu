// What enters each part of a run that is cut in parts, from what each leaves of nothing and its map M: S = M S +
// what it leaves, in IEEE float32, from part to part. A block has 16 columns of a run and head.
#include "layout.cuh"

namespace lasp::gpu::delta_hopper {
namespace {

constexpr int kColumns = 16, kThreads = 2 * kDim, kOwn = kColumns / 2;
constexpr int kMapBytes = 4 * kDim * kDim, kSharedBytes = 2 * kMapBytes;  // the next map is copied meanwhile

// Forward also the products of the maps themselves where `totals`: slices of K's columns after those of V's.
// Backward the state is the gradient, and M its transpose.
__global__ void __launch_bounds__(kThreads)
    scan_parts(int64_t first, const DeltaInputs p, const Slots slots, bool reversed, bool totals) {
  __shared__ __align__(16) float state[kDim][kColumns];
  extern __shared__ __align__(16) float copied[];
  const int keys = p.k.dim, of_states = (p.v.dim + kColumns - 1) / kColumns;
  const int64_t b = first + blockIdx.x;
  const int slices = of_states + (totals ? (keys + kColumns - 1) / kColumns : 0), slice = int(b % slices);
  const int32_t head = int32_t(b / slices % p.heads);
  const int64_t index = b / slices / p.heads;
  const Run run = p.runs[index];
  if (run.length == 0 || !takes(slots.filter, run)) return;
  const int tokens = slots.chunks * kChunk, parts = (run.length + tokens - 1) / tokens;
  const bool of_maps = slice >= of_states;
  const int row = threadIdx.x % kDim, own = threadIdx.x / kDim * kOwn,
            column = (of_maps ? slice - of_states : slice) * kColumns + own;
  float x[kOwn];
  const auto place_of = [&](float *kept, int part) {
    return kept + slots.state_of(index, part, p.heads, head) + row * kDim + column;
  };
  const auto load = [&](const float *from) {
#pragma unroll
    for (int i = 0; i < kOwn; i += 4) {
      const float4 y = *reinterpret_cast<const float4 *>(from + i);
      x[i] = y.x, x[i + 1] = y.y, x[i + 2] = y.z, x[i + 3] = y.w;
    }
  };
  const auto store = [&](float *to) {
#pragma unroll
    for (int i = 0; i < kOwn; i += 4)
      *reinterpret_cast<float4 *>(to + i) = float4{x[i], x[i + 1], x[i + 2], x[i + 3]};
  };
  const auto copy_map = [&](int n, int part) {
    const float *const from = slots.kept_maps && reversed
                                  ? slots.kept_maps + slots.state_of(run.segment, part, p.heads, head)
                                  : slots.maps + slots.state_of(index, part, p.heads, head);
    float *const to = copied + n % 2 * kDim * kDim;
#pragma unroll
    for (int i = 0; i < kMapBytes / 16 / kThreads; ++i) {
      const int at = 4 * (int(threadIdx.x) + i * kThreads);
      mma::copy_16(shared_address(to + at), from + at, true);
    }
    mma::copies_commit();
  };
  // Parts after which another comes, in the direction of the pass; of the first nothing is to be found.
  const int count = parts - 1, step = reversed ? -1 : 1;
  int part = reversed ? parts - 1 : 0;
  if (count < 1) return;
  if (of_maps) {
    const float *const map = slots.maps + slots.state_of(index, part, p.heads, head);
#pragma unroll
    for (int i = 0; i < kOwn; ++i) x[i] = map[(column + i) * kDim + row];
    store(place_of(slots.totals, part));
  } else {
    load(place_of(slots.states, part));
  }
  if (count > 1) copy_map(1, part + step);
  for (int n = 1; n < count; ++n) {
    store(&state[row][own]);
    part += step;
    if (n + 1 < count) {
      copy_map(n + 1, part + step);
      mma::copies_wait<1>();
    } else {
      mma::copies_wait<0>();
    }
    __syncthreads();
    float *const kept = place_of(of_maps ? slots.totals : slots.states, part);
    if (of_maps) {
#pragma unroll
      for (int i = 0; i < kOwn; ++i) x[i] = 0;
    } else {
      load(kept);
    }
    const float *const map = copied + n % 2 * kDim * kDim + row;
#pragma unroll 16
    for (int k = 0; k < keys; ++k) {
      const float m = map[k * kDim];
#pragma unroll
      for (int i = 0; i < kOwn; i += 4) {
        const float4 y = *reinterpret_cast<const float4 *>(&state[k][own + i]);
        x[i] = fmaf(m, y.x, x[i]), x[i + 1] = fmaf(m, y.y, x[i + 1]);
        x[i + 2] = fmaf(m, y.z, x[i + 2]), x[i + 3] = fmaf(m, y.w, x[i + 3]);
      }
    }
    if (row >= keys)  // M has no such rows
#pragma unroll
      for (int i = 0; i < kOwn; ++i) x[i] = 0;
    store(kept);
    __syncthreads();
  }
}

}  // namespace

int launch_scan_parts(const DeltaInputs &p, const Slots &slots, bool reversed, bool totals, Stream stream) {
  const int64_t slices = ceil_div(p.v.dim, kColumns) + (totals ? ceil_div(p.k.dim, kColumns) : 0);
  const int64_t blocks = p.num_runs * p.heads * slices;
  return launch_blocks(scan_parts, blocks, kThreads, kSharedBytes, stream, p, slots, reversed, totals);
}

int load_parts() { return load_kernel(scan_parts, kSharedBytes); }

}  // namespace lasp::gpu::delta_hopper
