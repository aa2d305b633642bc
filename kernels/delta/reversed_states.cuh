// The states of a reversed walk, over `scale`: where they come from and go to, and what a block works on.
#pragma once

#include "walk.cuh"

namespace lasp::gpu::delta_hopper::reversed_walk {

template <typename T>
struct ReversedStates {
  const DeltaReversed &p;
  const Place &place;
  const Slots &slots;
  const int32_t slice;
  float s[64];

  __device__ __forceinline__ Extent extent() const { return {p.k.dim, p.v.dim, slots.columns}; }
  __device__ __forceinline__ int64_t size() const { return int64_t{p.k.dim} * slots.columns; }
  __device__ __forceinline__ int column() const { return slice * kSlice; }

  __device__ __forceinline__ bool ends() const { return slots.phase == Phase::kEnds; }
  // This block's share of the state that leaves a part, over `scale`.
  __device__ __forceinline__ float *slice_of(int32_t part) const {
    return slots.states + slice / kWalkers * slots.of_group(p) +
           slots.state_of(place.index, part, p.heads, place.head) + slice % kWalkers * kSlice;
  }

  __device__ __forceinline__ void load() {
    if (column() >= p.v.dim) {  // of two slices in a block one may be all padding, which no walk leaves
      each_of_state([&](int i, int, int) { s[i] = 0; });
    } else if (place.after && !ends()) {
      const float *const from = slice_of(place.part + 1);
      each_of_state([&](int i, int row, int v) { s[i] = from[row * kDim + v]; });
    } else if (p.d_state_in && !place.after && !place.forgets) {
      const int64_t index = place.run.state * p.heads + place.head;
      const float factor = 1 / p.scale;
      load_slice(s, p.d_state_in + index * size(), extent(), slice);
#pragma unroll
      for (float &x : s) x *= factor;
    } else {
      each_of_state([&](int i, int, int) { s[i] = 0; });
    }
  }
  __device__ __forceinline__ void store_to(float *to, int64_t index) {
    if (!to) return;
    to += (index * p.heads + place.head) * size();
    store_slice(to, extent(), slice, [&](int i) { return p.scale * s[i]; });
  }
  __device__ __forceinline__ void add_to(float *to, int64_t index) {
    if (!to) return;
    to += (index * p.heads + place.head) * size() + column();
    each_there(extent(), slice, [&](int i, int row, int v) { to[row * slots.columns + v] += p.scale * s[i]; });
  }
  __device__ __forceinline__ void store() {
    if (ends()) {
      float *const to = slice_of(place.part);
      each_of_state([&](int i, int row, int v) { to[row * kDim + v] = s[i]; });
      return;
    }
    if (place.part > 0) return;
    store_to(p.d_state_out, place.run.state);
    if (place.run.starts >= 0) {
      if (p.edge_adds) {
        add_to(p.d_edge_state, place.run.starts);
      } else {
        store_to(p.d_edge_state, place.run.starts);
      }
    }
    if (p.d_leaving && p.segments[place.run.segment].produces[1]) store_to(p.d_leaving, place.run.path);
  }

  // Before chunk c is walked.
  __device__ __forceinline__ void keep(int c) {
    if (!p.d_checkpoints || ends()) return;
    const int32_t at = place.part * slots.chunks + c;
    const bool last = c + 1 == place.chunks && !place.after;  // of the run
    if (((at + 1) & (slots.of_stretch - 1)) && !last) return;
    const int64_t index = (int64_t{place.run.checkpoint} + (at >> slots.log2_of_stretch())) * p.heads + place.head;
    uint32_t rounded[32];
#pragma unroll
    for (int i = 0; i < 32; ++i) rounded[i] = pack<T>(p.scale * s[2 * i], p.scale * s[2 * i + 1]);
    store_rounded<T>(static_cast<T *>(p.d_checkpoints) + index * size(), rounded, extent(), slice);
  }
};

// Which (run, part, head, slice) block b has, where a head has as many slices. False: none.
__device__ __forceinline__ bool find_place(const DeltaReversed &p, const Slots &slots, int32_t slices, int64_t b,
                                           Place &place) {
  place.slice = int32_t(b % slices);
  place.head = int32_t(b / slices % p.heads);
  place.part = int32_t(b / slices / p.heads % slots.parts);
  place.index = b / slices / p.heads / slots.parts;
  if (!start_part(p, slots, p.filter, place)) return false;
  return slots.phase == Phase::kEnds ? place.part > 0 || slots.own : place.part == 0 || p.d_checkpoints != nullptr;
}

}  // namespace lasp::gpu::delta_hopper::reversed_walk
