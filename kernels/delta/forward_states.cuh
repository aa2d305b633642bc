// The states of a forward walk: where they come from and go to, what is kept of chunks, and which (run, part, head,
// slice) a block has.
#pragma once

#include "bulk.cuh"

namespace lasp::gpu::delta_hopper::forward_walk {

// Of a warpgroup each, from this one on.
constexpr int kSendBarrier = 3;

// What a walk is for: outputs, states alone, or the states and E of a stretch's chunks for its gradients.
enum class Mode { kOutputs, kStates, kStretch };

template <typename T, Mode kMode>
struct ChainStates {
  static constexpr bool kOutputs = kMode == Mode::kOutputs, kStretch = kMode == Mode::kStretch;
  const DeltaForward &p;
  const Place &place;
  const int32_t slice;
  const bool transition;  // walks M: the identity enters, nothing is written
  const Stretches &kept;
  const Slots &slots;
  float s[64];

  __device__ __forceinline__ Extent extent() const {
    return transition ? Extent{p.k.dim, p.k.dim, p.k.dim} : Extent{p.k.dim, p.v.dim, slots.columns};
  }
  // Of a state, or M.
  __device__ __forceinline__ int64_t size() const { return int64_t{p.k.dim} * extent().stride; }
  __device__ __forceinline__ int column() const { return slice * kSlice; }
  // Walks a part for what it leaves, whatever enters it.
  __device__ __forceinline__ bool ends() const { return is_of_ends(slots.phase); }
  // What is kept of a part, of this block's head.
  __device__ __forceinline__ float *kept_of(float *parts, int32_t part) const {
    return parts + slots.state_of(place.index, part, p.heads, place.head);
  }

  __device__ __forceinline__ void load() {
    if constexpr (kStretch) {
      const int64_t index = int64_t{place.run.checkpoint} * p.heads + place.head;
      load_slice(s, static_cast<const T *>(kept.checkpoints) + index * size(), extent(), slice);
    } else if (place.part > 0 && !ends()) {
      const float *const from = kept_of(transition ? slots.totals : slots.states, place.part - 1) + column();
      each_of_state([&](int i, int row, int v) { s[i] = from[row * kDim + v]; });
    } else if (transition && !place.forgets) {
      each_of_state([&](int i, int row, int v) { s[i] = row == column() + v ? 1 : 0; });
    } else if (p.state_in && place.part == 0 && !place.forgets) {
      const int64_t index = place.run.state * p.heads + place.head;
      load_slice(s, p.state_in + index * size(), extent(), slice);
    } else {
      each_of_state([&](int i, int, int) { s[i] = 0; });
    }
  }
  __device__ __forceinline__ void store_to(float *to, int64_t index) {
    if (!to) return;
    to += (index * p.heads + place.head) * size();
    store_slice(to, extent(), slice, [&](int i) { return s[i]; });
  }
  __device__ __forceinline__ void store() {
    if (ends()) {
      float *const to = kept_of(transition ? slots.maps : slots.states, place.part);
      const bool transposed = transition && slots.phase == Phase::kEnds;
      const int of_row = transposed ? 1 : kDim, of_column = transposed ? kDim : 1;
      each_of_state([&](int i, int row, int v) { to[row * of_row + (column() + v) * of_column] = s[i]; });
      if (!transition || !slots.kept_maps || (place.part == 0 && !slots.own)) return;
      float *const kept_map =
          slots.kept_maps + slots.state_of(place.run.segment, place.part, p.heads, place.head) + column();
      each_of_state([&](int i, int row, int v) { kept_map[row * kDim + v] = s[i]; });
      return;
    }
    if (place.after) return;
    if (transition) return store_to(p.transition, place.run.path);
    store_to(p.state_out, place.run.state);
    if (place.run.ends >= 0) store_to(p.edge_state, place.run.ends);
    if (p.leaving && p.segments[place.run.segment].produces[0]) store_to(p.leaving, place.run.path);
  }

  // Left operands of 16 columns to rows of a tile: this warp's two pieces of each, which are its own.
  static __device__ __forceinline__ void put_columns(uint32_t tile, int j, const uint32_t *x) {
    asm volatile(
        "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(transposed_at(tile, j)),
        "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3])
        : "memory");
  }
  // Accumulators of a chunk's tokens in flipped order, times a factor and rounded, to the place of v.
  __device__ __forceinline__ void put_tokens(const float (&y)[32], float factor, uint32_t tile) const {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      uint32_t x[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) x[i] = pack<T>(factor * y[8 * j + 2 * i], factor * y[8 * j + 2 * i + 1]);
      put_columns(tile, j ^ 3, x);
    }
    __syncwarp();
  }
  // What is kept of a stretch's chunk goes to memory by the copy engine, from an image of this warpgroup's columns.
  // keep_state(n) waits until all copies before have read their images. So the image of E is free for
  // keep_tokens(n), and the other image of a state for keep_state(n + 1).
  // The rounded state before chunk n.
  __device__ __forceinline__ void keep_state(const uint32_t (&high)[32], uint32_t image, int n) const {
#pragma unroll
    for (int j = 0; j < 8; ++j) put_columns(image, j, high + 4 * j);
    if (threadIdx.x % kGroup == 0) wait_stored();
    send(kept.states_of(place.group_item(p.heads, kept.groups), n), image, kDim * 128);
  }
  // Its E.
  __device__ __forceinline__ void keep_tokens(const float (&e)[32], uint32_t image, int n) const {
    put_tokens(e, 1, image);
    send(kept.tokens_of(place.group_item(p.heads, kept.groups), n), image, kPanel);
  }
  // `to`: of both slices that a block may have.
  __device__ __forceinline__ void send(char *to, uint32_t image, uint32_t bytes) const {
    hopper::fence_async_proxy();
    mma::sync_some<kGroup>(kSendBarrier + int(threadIdx.x / kGroup));
    if (threadIdx.x % kGroup == 0) store_bulk(to + slice % kWalkers * bytes, image, bytes);
  }
  // Of 16 rows of a tile from `first` on the 16 bytes that this lane takes; and the first of its columns: a warp
  // has 16 of them.
  static __device__ __forceinline__ uint4 load_row(uint32_t tile, int first) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x % kGroup / 32;
    return load_shared_16(tile + swizzled(first + lane / 2, 2 * warp + lane % 2));
  }
  __device__ __forceinline__ int own_column(int thread = threadIdx.x % kGroup) const {
    return column() + 16 * (thread / 32) + thread % 2 * 8;
  }
  // The state before chunk n, if it is a checkpoint; by way of a tile, half of the rows at a time.
  __device__ __forceinline__ void keep(int n, uint32_t tile) const {
    if (!p.checkpoints || transition || ends()) return;
    const int32_t at = place.part * slots.chunks + n;
    if (at & (slots.of_stretch - 1)) return;
    const int64_t index = (int64_t{place.run.checkpoint} + (at >> slots.log2_of_stretch())) * p.heads + place.head;
    const int32_t stride = extent().stride, row = this_thread() % 32 / 2, first_column = own_column(this_thread());
    T *to = static_cast<T *>(p.checkpoints) + index * size() + row * stride + first_column;
    const int32_t rows = first_column < p.v.dim ? p.k.dim - row : 0;
#pragma unroll
    for (int first = 0; first < kDim; first += kChunk) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        uint32_t x[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int of = first / 2 + 8 * j + 2 * i;
          x[i] = pack<T>(s[of], s[of + 1]);
        }
        put_columns(tile, j, x);
      }
      __syncwarp();
#pragma unroll
      for (int i = first; i < first + kChunk; i += 16, to += 16 * stride)
        hopper::store_global_16_if(i < rows, to, load_row(tile, i - first));
      __syncwarp();
    }
  }
};

// How many slices of states a launch has for each part, and with those of M.
// What is kept of stretches has whole groups of columns, be they zero.
__host__ __device__ __forceinline__ int32_t state_slices(const DeltaForward &p, Phase phase, bool stretch) {
  return phase == Phase::kMaps ? 0 : slices_of(stretch ? groups_of(p.v.dim) * kDim : p.v.dim);
}
__host__ __device__ __forceinline__ int32_t all_slices(const DeltaForward &p, Phase phase, bool stretch) {
  const bool maps = phase == Phase::kEnds || phase == Phase::kMaps || (p.transition && phase != Phase::kStates);
  return state_slices(p, phase, stretch) + (maps ? slices_of(p.k.dim) : 0);
}

// Whether a state (or M, `transition`) is walked there.
__device__ __forceinline__ bool is_walked(const DeltaForward &p, const Slots &slots, const Place &place,
                                          bool transition) {
  const Phase phase = slots.phase;
  if (slots.own && is_of_ends(phase)) return true;
  if (slots.maps_to_end && transition && is_of_ends(phase)) return place.part > 0;
  if (phase == Phase::kStates) return place.after;
  if (phase == Phase::kEnds || phase == Phase::kMaps)  // of a run's first part M is wanted for the run's own alone
    return place.after && (!transition || place.part > 0 || p.transition);
  if (phase == Phase::kResults && place.after && (transition || (!p.o.data && !p.checkpoints))) return false;
  if (transition) {
    const Segment &segment = p.segments[place.run.segment];
    if (segment.begins[0] || segment.begins[1]) return false;
  }
  return true;
}
// Which (run, part, head, slice) block b has, slices of M after those of V; false: none.
template <bool kStretch>
__device__ __forceinline__ bool find_place(const DeltaForward &p, const Slots &slots, int64_t b, Place &place,
                                           bool &transition) {
  const Phase phase = slots.phase;
  const int32_t slices = all_slices(p, phase, kStretch), slice = int32_t(b % slices);
  const int32_t of_states = state_slices(p, phase, kStretch);
  transition = slice >= of_states;
  place.slice = transition ? slice - of_states : slice;
  place.head = int32_t(b / slices % p.heads);
  place.part = int32_t(b / slices / p.heads % slots.parts);
  place.index = place.item = b / slices / p.heads / slots.parts;
  return start_part(p, slots, p.filter, place) && is_walked(p, slots, place, transition);
}

}  // namespace lasp::gpu::delta_hopper::forward_walk
