// What enters each part of a run that is cut in parts, from what each leaves of nothing and its map M: S = M S +
// what it leaves, in IEEE float32, from part to part. A block has 16 columns of a run and head. Where the state
// that enters the run is not known yet (DeltaHalf::kOwn), from nothing and the identity; a second kernel adds it.
#include "layout.cuh"

namespace lasp::gpu::delta_hopper {
namespace {

constexpr int kColumns = 16, kThreads = 2 * kDim, kOwn = kColumns / 2;
constexpr int kMapBytes = 4 * kDim * kDim, kSharedBytes = 2 * kMapBytes;  // the next map is copied meanwhile

// x += m y.
template <int kCount>
__device__ __forceinline__ void add_row(float (&x)[kCount], float m, const float *y) {
#pragma unroll
  for (int i = 0; i < kCount; i += 4) {
    const float4 z = *reinterpret_cast<const float4 *>(y + i);
    x[i] = fmaf(m, z.x, x[i]), x[i + 1] = fmaf(m, z.y, x[i + 1]);
    x[i + 2] = fmaf(m, z.z, x[i + 2]), x[i + 3] = fmaf(m, z.w, x[i + 3]);
  }
}
template <int kCount>
__device__ __forceinline__ void store_row(float *to, const float (&x)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; i += 4)
    *reinterpret_cast<float4 *>(to + i) = float4{x[i], x[i + 1], x[i + 2], x[i + 3]};
}

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
  const auto store = [&](float *to) { store_row(to, x); };
  const auto map_of = [&](int part) {
    return slots.kept_maps && reversed ? slots.kept_maps + slots.state_of(run.segment, part, p.heads, head)
                                       : slots.maps + slots.state_of(index, part, p.heads, head);
  };
  const auto store_total = [&](int part) {
    if (!slots.own) return store(place_of(slots.totals, part));
    float *const to = slots.totals + slots.state_of(index, part, p.heads, head) + row;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) to[(column + i) * kDim] = x[i];
  };
  // False: the part forgets, and its map is not read.
  const auto copy_map = [&](int n, int part) {
    const bool counts = !can_forget(p) || !slots.forgets(p, index, part, head);
    const float *const from = map_of(part);
    float *const to = copied + n % 2 * kDim * kDim;
#pragma unroll
    for (int i = 0; i < kMapBytes / 16 / kThreads; ++i) {
      const int at = 4 * (int(threadIdx.x) + i * kThreads);
      if (counts) mma::copy_16(shared_address(to + at), from + at, true);
    }
    mma::copies_commit();
    return counts;
  };
  // Parts after which another comes, in the direction of the pass; of the first nothing is to be found.
  const int count = slots.own ? parts : parts - 1, step = reversed ? -1 : 1;
  int part = reversed ? parts - 1 : 0;
  if (count < 1) return;
  if (of_maps) {
    const float *const map = map_of(part);
#pragma unroll
    for (int i = 0; i < kOwn; ++i) x[i] = map[(column + i) * kDim + row];
    store_total(part);
  } else {
    load(place_of(slots.states, part));
  }
  bool next_counts = count > 1 && copy_map(1, part + step);
  for (int n = 1; n < count; ++n) {
    store(&state[row][own]);
    part += step;
    const bool counts = next_counts;
    if (n + 1 < count) {
      next_counts = copy_map(n + 1, part + step);
      mma::copies_wait<1>();
    } else {
      mma::copies_wait<0>();
    }
    __syncthreads();
    if (of_maps) {
#pragma unroll
      for (int i = 0; i < kOwn; ++i) x[i] = 0;
    } else {
      load(place_of(slots.states, part));
    }
    const float *const map = copied + n % 2 * kDim * kDim + row;
#pragma unroll 16
    for (int k = 0; k < (counts ? keys : 0); ++k) add_row(x, map[k * kDim], &state[k][own]);
    if (row >= keys)  // M has no such rows
#pragma unroll
      for (int i = 0; i < kOwn; ++i) x[i] = 0;
    if (of_maps) {
      store_total(part);
    } else {
      store(place_of(slots.states, part));
    }
    __syncthreads();
  }
  if (!slots.own || row >= keys) return;
  // What leaves the run: a state of the run's width, or M.
  const Segment &segment = p.segments[run.segment];
  const int32_t columns = of_maps ? keys : slots.columns, width = of_maps ? keys : p.v.dim;
  float *to = of_maps ? slots.transition : slots.leaving;
  if (!to || (of_maps ? segment.begins[0] || segment.begins[1] : !segment.produces[reversed])) return;
  to += ((int64_t{run.path} * p.heads + head) * keys + row) * columns + column;
  const float factor = reversed ? p.scale : 1;
#pragma unroll
  for (int i = 0; i < kOwn; ++i)
    if (column + i < width) to[i] = factor * x[i];
}

// A block adds M of all parts up to one, times the state that enters the run, to what leaves that part: 32 columns.
constexpr int kEnterColumns = 32, kEnterOwn = kEnterColumns / 2;
__global__ void __launch_bounds__(kThreads)
    enter_parts(int64_t first, const DeltaInputs p, const Slots slots, bool reversed, const float *state_in) {
  __shared__ __align__(16) float state[kDim][kEnterColumns];
  const int keys = p.k.dim, columns = slots.columns, slices = (p.v.dim + kEnterColumns - 1) / kEnterColumns;
  const int64_t b = first + blockIdx.x;
  const int begin = int(b % slices) * kEnterColumns;
  const int32_t head = int32_t(b / slices % p.heads), part = int32_t(b / slices / p.heads % slots.parts);
  const int64_t index = b / slices / p.heads / slots.parts;
  const Run run = p.runs[index];
  if (run.length == 0 || !takes(slots.filter, run)) return;
  const int tokens = slots.chunks * kChunk, parts = (run.length + tokens - 1) / tokens;
  // What leaves the last part, in the direction of the pass, enters no other.
  if (part >= parts || part == (reversed ? 0 : parts - 1)) return;
  if (can_forget(p)) {  // nothing of it gets as far
    const int other = threadIdx.x;
    const bool on_way = reversed ? other >= part && other < parts : other <= part;
    if (__syncthreads_or(on_way && slots.forgets(p, index, other, head))) return;
  }
  const float factor = reversed ? 1 / p.scale : 1;
  const float *const from = state_in + (run.state * p.heads + head) * int64_t{keys} * columns;
  for (int i = threadIdx.x; i < kDim * kEnterColumns; i += kThreads) {
    const int row = i / kEnterColumns, column = i % kEnterColumns;
    const bool there = row < keys && begin + column < p.v.dim;
    state[row][column] = there ? factor * from[int64_t{row} * columns + begin + column] : 0;
  }
  __syncthreads();
  const int row = threadIdx.x % kDim, own = threadIdx.x / kDim * kEnterOwn;
  const int64_t at = slots.state_of(index, part, p.heads, head);
  if (row >= keys) return;
  float *const to = slots.states + at + row * kDim + begin + own;
  const float *const total = slots.totals + at + row;
  float x[kEnterOwn];
#pragma unroll
  for (int i = 0; i < kEnterOwn; ++i) x[i] = to[i];
#pragma unroll 8
  for (int k = 0; k < keys; ++k) add_row(x, total[k * kDim], &state[k][own]);
  store_row(to, x);
}

}  // namespace

int launch_scan_parts(const DeltaInputs &p, const Slots &slots, bool reversed, bool totals, Stream stream) {
  const int64_t slices = ceil_div(p.v.dim, kColumns) + (totals ? ceil_div(p.k.dim, kColumns) : 0);
  const int64_t blocks = p.num_runs * p.heads * slices;
  return launch_blocks(scan_parts, blocks, kThreads, kSharedBytes, stream, p, slots, reversed, totals);
}

int launch_enter_parts(const DeltaInputs &p, const Slots &slots, bool reversed, const float *state_in,
                       Stream stream) {
  if (!state_in) return cudaSuccess;
  const int64_t blocks = p.num_runs * slots.parts * p.heads * ceil_div(p.v.dim, kEnterColumns);
  return launch_blocks(enter_parts, blocks, kThreads, 0, stream, p, slots, reversed, state_in);
}

int load_parts() {
  if (const int error = load_kernel(enter_parts)) return error;
  return load_kernel(scan_parts, kSharedBytes);
}

}  // namespace lasp::gpu::delta_hopper
