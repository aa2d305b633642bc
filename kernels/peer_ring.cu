// The ring's exchange through windows of peers' memory (peer_ring.h): a block for a lane.
#include "peer_ring.h"

#include "peer_lanes.cuh"
#include "states.cuh"

namespace lasp::gpu {
namespace {

constexpr int kRingThreads = 512;

// The own map's factors by element of a state. Neighbours mostly have the same, which is worked out once.
template <bool kKnown>
class Factors {
 public:
  __device__ explicit Factors(const PeerRing &p) : p_(p) {}
  __device__ float operator()(int64_t at) {
    const int64_t factor = StateOffsets(p_.shape, at).factor;
    if (!kKnown) return p_.own_factor[factor];
    if (factor != last_) {
      last_ = factor;
      code_ = known_code(p_.known, p_.log_decay, factor % p_.shape.heads);
    }
    return code_;
  }

 private:
  const PeerRing &p_;
  int64_t last_ = -1;
  float code_ = 0;
};

template <class Element, bool kKnown>
__global__ void __launch_bounds__(kRingThreads, 1) peer_ring_kernel(const __grid_constant__ PeerRing p) {
  constexpr int kWidth = sizeof(Element) / sizeof(float), kAtOnce = 4;
  const PeerPlace &place = p.place;
  const int lane = static_cast<int>(blockIdx.x);
  const bool receives = p.from >= 0, sends = p.to >= 0;
  const Side in = side_of(place, lane, receives ? p.from : place.rank, false);
  const Side out = side_of(place, lane, sends ? p.to : place.rank, true);
  if (is_dead(place)) return;
  uint32_t came = *in.own, went = *out.own;
  const int64_t bytes = p.shape.rows * state_floats(p.shape) * static_cast<int64_t>(sizeof(float));
  const int64_t share = place.layout.share_of(bytes), begin = lane * share;
  const int64_t end = begin + share < bytes ? begin + share : bytes;
  Factors<kKnown> factors(p);
  for (int64_t piece = begin; piece < end; piece += kSlotBytes, ++came, ++went) {
    const int64_t size = end - piece < kSlotBytes ? end - piece : kSlotBytes;
    const auto count = static_cast<int>(size / static_cast<int64_t>(sizeof(Element)));
    const int64_t at = piece / static_cast<int64_t>(sizeof(float));
    const bool may = threadIdx.x > 0 || ((!receives || wait_for(in.awaited, came + 1, place.ended)) &&
                                         (!sends || wait_for(out.awaited, went + 1 - kSlots, place.ended)));
    if (!__syncthreads_and(may)) {
      *dead_word(place) = 1;
      return;
    }
    const auto *const source = reinterpret_cast<const Element *>(in.slots + came % kSlots * kSlotBytes);
    auto *const target = reinterpret_cast<Element *>(out.slots + went % kSlots * kSlotBytes);
    const auto *const own = reinterpret_cast<const Element *>(p.own_state + at);
    auto *const kept = reinterpret_cast<Element *>(p.incoming + at);
    for (int first = static_cast<int>(threadIdx.x); first < count; first += kAtOnce * kRingThreads) {
      Element comes[kAtOnce], goes[kAtOnce];
#pragma unroll
      for (int n = 0; n < kAtOnce; ++n) {
        const int i = first + n * kRingThreads;
        if (i >= count) continue;
        if (sends) goes[n] = own[i];
        if (receives) comes[n] = __ldcg(source + i);
      }
#pragma unroll
      for (int n = 0; n < kAtOnce; ++n) {
        const int i = first + n * kRingThreads;
        if (i >= count) continue;
        if (receives) kept[i] = comes[n];
        if (!sends) continue;
        if (receives) goes[n] = follow(comes[n], factors(at + static_cast<int64_t>(i) * kWidth), goes[n]);
        target[i] = goes[n];
      }
    }
    __syncthreads();
    if (threadIdx.x > 0) continue;
    if (sends) count_in(out.told).store(went + 1, cuda::memory_order_release);
    // Seldom, but before the sender has to wait.
    if (receives && (piece + kSlotBytes >= end || came % 2 == 1))
      count_in(in.told).store(came + 1, cuda::memory_order_release);
  }
  if (threadIdx.x > 0) return;
  if (receives) *in.own = came;
  if (sends) *out.own = went;
}

template <class Element>
int launch_ring_of(const PeerRing &p, unsigned lanes, Stream stream) {
  const bool known = p.own_factor == nullptr;
  (known ? peer_ring_kernel<Element, true>
         : peer_ring_kernel<Element, false>)<<<lanes, kRingThreads, 0, stream>>>(p);
  return cudaGetLastError();
}

}  // namespace

int launch_peer_ring(const PeerRing &p, Stream stream) {
  const int64_t floats = p.shape.rows * state_floats(p.shape);
  if (floats == 0 || (p.from < 0 && p.to < 0)) return cudaSuccess;
  const auto lanes = static_cast<unsigned>(p.place.layout.lanes_of(floats * static_cast<int64_t>(sizeof(float))));
  return p.shape.dim_v % 4 == 0 && aligned_for_four(p.incoming) && aligned_for_four(p.own_state)
             ? launch_ring_of<float4>(p, lanes, stream)
             : launch_ring_of<float>(p, lanes, stream);
}

int load_peer_ring() {
  return load_kernels(peer_ring_kernel<float4, true>, peer_ring_kernel<float4, false>,
                      peer_ring_kernel<float, true>, peer_ring_kernel<float, false>);
}

}  // namespace lasp::gpu
