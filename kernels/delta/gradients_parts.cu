// A walk back that finds the gradients of states and every other gradient in one: gradients_kernel.cuh has the
// formulas, reversed.cu the same walk without them. A block has all of a part of a run and head; a launch, a window
// of each part's chunks, since what the chunks' states take in memory is bounded. From a window to the one before
// it R is left in the place of d_checkpoints.
#include "gradients.h"
#include "gradients_walk.cuh"
#include "reversed_states.cuh"

namespace lasp::gpu::delta_hopper {
namespace gradients {
namespace {

// R before a window, over scale: its high part where a stretch that ends there would find the gradient of its
// state, its low part where the window's first stretch would.
template <typename T>
struct Carried {
  const DeltaReversed &p;
  const Place &place;
  const Slots &slots;
  const int32_t slice;

  __device__ __forceinline__ Extent extent() const { return {p.k.dim, p.v.dim, slots.columns}; }
  __device__ __forceinline__ T *at(int64_t checkpoint) const {
    return static_cast<T *>(p.d_checkpoints) +
           (checkpoint * p.heads + place.head) * int64_t{p.k.dim} * slots.columns;
  }
  // The window's end is that of a stretch.
  __device__ __forceinline__ void load(float (&s)[64]) const {
    const int64_t after = int64_t{place.run.checkpoint} + (place.chunks >> slots.log2_of_stretch());
    float low[64];
    load_slice(s, at(after - 1), extent(), slice);
    load_slice(low, at(after), extent(), slice);
#pragma unroll
    for (int i = 0; i < 64; ++i) s[i] += low[i];
  }
  __device__ __forceinline__ void store(const float (&s)[64]) const {
    uint32_t high[32], low[32];
    split<T, 64>(s, high, low);
    store_rounded<T>(at(int64_t{place.run.checkpoint} - 1), high, extent(), slice);
    store_rounded<T>(at(place.run.checkpoint), low, extent(), slice);
  }
};

// R where a window ends and begins.
template <typename T>
struct Edges {
  const DeltaReversed &p;
  const Place &place;
  const Slots &slots;
  const int32_t half;

  __device__ __forceinline__ int32_t slice() const { return place.slice + half; }
  __device__ __forceinline__ void load(float (&s)[64]) const {
    if (place.later) return Carried<T>{p, place, slots, slice()}.load(s);
    reversed_walk::ReversedStates<T> from{p, place, slots, slice(), {}};
    from.load();
#pragma unroll
    for (int i = 0; i < 64; ++i) s[i] = from.s[i];
  }
  __device__ __forceinline__ void store(const float (&s)[64]) const {
    if (place.skipped > 0) return Carried<T>{p, place, slots, slice()}.store(s);
    reversed_walk::ReversedStates<T> to{p, place, slots, slice(), {}};
#pragma unroll
    for (int i = 0; i < 64; ++i) to.s[i] = s[i];
    to.store();
  }
};

template <typename T, bool kDecay, bool kPairs>
__global__ void __launch_bounds__(kThreads, 1)
    gradients_of_parts(const int64_t first, const DeltaGradients p, const DeltaReversed back, const Slots slots,
                       const Stretches kept, float *const partial, const __grid_constant__ GradientMaps maps) {
  extern __shared__ __align__(1024) char shared[];
  __shared__ Place place;  // not in registers, of which walkers have none to spare
  Place mine;
  const int64_t b = first + blockIdx.x;
  const bool of_columns = kPairs && kept.groups > 1;
  const int64_t of_head = of_columns ? b / 2 : b;
  mine.slice = of_columns ? int32_t(b % 2) * delta_hopper::kWalkers : 0;
  mine.head = int32_t(of_head % p.heads), mine.item = of_head / p.heads;
  if (!start_window(back, slots, kept.window, back.filter, mine)) return;
  mine.of_columns = of_columns;
  place_results(p, slots, maps.inputs.fits, mine);
  if (threadIdx.x == 0) place = mine;
  const Block block{shared_address(shared)};
  block.template begin<kPairs>();
  const int warp = __shfl_sync(~0u, int(threadIdx.x / 32), 0);
  if (warp < kWalkers / 32) {
    hopper::take_registers<kWalkerRegisters>();
    const int half = warp / 4;
    Walker<T, kDecay, false, kPairs, true> walker{{p, place, block, maps, half, warp % 4, int(threadIdx.x % 32)},
                                                  {}};
    const Edges<T> edges{back, place, slots, half};
    edges.load(walker.s);
    walker.run();
    edges.store(walker.s);
  } else {
    hopper::give_registers<kProducerRegisters>();
    Rows<kDecay, false, 1, kPairs> rows{p, place, block, partial, false};
    Copies{p, place, block, maps.inputs}.run(slots, kept, rows);
  }
  if constexpr (kPairs) hopper::cluster_sync();  // no block leaves while the other reads from it
}

template <typename T>
int launch_parts(const DeltaReversed &back, const Slots &slots, const Stretches &kept, float *partial,
                 Stream stream) {
  const DeltaGradients &p = *back.gradients;
  const bool none = p.decay == Decay::kNone;
  const int64_t blocks = kept.window.units * p.heads * kept.groups;
  GradientMaps maps = encode_results(p);
  encode_maps(maps.inputs, p, p.d_o, true, kChunk);
  if (p.d_q.heads == p.heads && kept.groups == 1)
    return launch_blocks(none ? gradients_of_parts<T, false, false> : gradients_of_parts<T, true, false>, blocks,
                         kThreads, kBytes, stream, p, back, slots, kept, partial, maps);
  return launch_pairs(none ? gradients_of_parts<T, false, true> : gradients_of_parts<T, true, true>, blocks,
                      kThreads, kBytes, stream, p, back, slots, kept, partial, maps);
}

}  // namespace
}  // namespace gradients

int launch_gradients_of_parts(const DeltaReversed &p, const Slots &slots, const Stretches &kept, float *partial,
                              Stream stream) {
  return p.dtype == DType::kBFloat16 ? gradients::launch_parts<__nv_bfloat16>(p, slots, kept, partial, stream)
                                     : gradients::launch_parts<__half>(p, slots, kept, partial, stream);
}
int load_gradients_of_parts() {
  using namespace gradients;
  for (const auto kernel :
       {gradients_of_parts<__nv_bfloat16, false, false>, gradients_of_parts<__nv_bfloat16, true, false>,
        gradients_of_parts<__nv_bfloat16, false, true>, gradients_of_parts<__nv_bfloat16, true, true>,
        gradients_of_parts<__half, false, false>, gradients_of_parts<__half, true, false>,
        gradients_of_parts<__half, false, true>, gradients_of_parts<__half, true, true>})
    if (const int error = load_kernel(kernel, kBytes)) return error;
  return cudaSuccess;
}

}  // namespace lasp::gpu::delta_hopper
