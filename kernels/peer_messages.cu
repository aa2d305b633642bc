// Messages through windows of peers' memory (peer_messages.h): a block for a lane of a way.
#include "peer_messages.h"

#include "device.cuh"
#include "peer_lanes.cuh"

namespace lasp::gpu {
namespace {

constexpr int kThreads = 512;

// By the block. What a peer wrote was never in the first cache, and is not looked for there.
template <class Word>
__device__ void copy_words(std::byte *to, const std::byte *from, int64_t bytes) {
  constexpr int kAtOnce = 4;
  const auto words = static_cast<int>(bytes / static_cast<int64_t>(sizeof(Word)));
  const auto *const source = reinterpret_cast<const Word *>(from);
  auto *const target = reinterpret_cast<Word *>(to);
  for (int first = static_cast<int>(threadIdx.x); first < words; first += kAtOnce * kThreads) {
    Word held[kAtOnce];
#pragma unroll
    for (int n = 0; n < kAtOnce; ++n)
      if (first + n * kThreads < words) held[n] = __ldcg(source + first + n * kThreads);
#pragma unroll
    for (int n = 0; n < kAtOnce; ++n)
      if (first + n * kThreads < words) target[first + n * kThreads] = held[n];
  }
}

// One of the two is in a window, and aligned. Halos may begin on any element, states on 4 bytes.
__device__ void copy_piece(std::byte *to, const std::byte *from, int64_t bytes) {
  const uint64_t all =
      reinterpret_cast<uint64_t>(to) | reinterpret_cast<uint64_t>(from) | static_cast<uint64_t>(bytes);
  if (all % 16 == 0) return copy_words<uint4>(to, from, bytes);
  if (all % 4 == 0) return copy_words<uint32_t>(to, from, bytes);
  copy_words<uint16_t>(to, from, bytes);
}

template <int kMost>
__global__ void __launch_bounds__(kThreads, kLaneBlocksOfMultiprocessor)
    peer_messages_kernel(PeerGroup p, const __grid_constant__ PeerList<kMost> list) {
  const int lane = static_cast<int>(blockIdx.x), way = static_cast<int>(blockIdx.y);
  const int first = list.first[way], end = list.first[way + 1];
  const PeerPlace &place = p.place;
  const Side side = side_of(place, lane, list.messages[first].peer, list.messages[first].is_send);
  if (is_dead(place)) return;
  uint32_t n = *side.own;
  for (int m = first; m < end; ++m) {
    const PeerMessage message = list.messages[m];
    if (lane >= place.layout.lanes_of(message.bytes)) continue;
    const int64_t share = place.layout.share_of(message.bytes), begin = lane * share;
    int64_t left = message.bytes - begin < share ? message.bytes - begin : share;
    for (std::byte *data = message.data + begin; left > 0; data += kSlotBytes, left -= kSlotBytes, ++n) {
      const bool may = threadIdx.x > 0 || wait_for(side.awaited, n + side.ahead, place.ended);
      if (!__syncthreads_and(may)) {
        *dead_word(place) = 1;
        return;
      }
      std::byte *const slot = side.slots + n % kSlots * kSlotBytes;
      copy_piece(message.is_send ? slot : data, message.is_send ? data : slot,
                 left < kSlotBytes ? left : kSlotBytes);
      __syncthreads();
      // A receiver tells seldom, but before the sender has to wait.
      const bool tells = message.is_send || left <= kSlotBytes || n % 2 == 1;
      if (tells && threadIdx.x == 0) count_in(side.told).store(n + 1, cuda::memory_order_release);
    }
  }
  if (threadIdx.x == 0) *side.own = n;
}

// The list is the kernel's parameter, and a short one is launched sooner.
constexpr int kFew = 64;

}  // namespace

int launch_peer_messages(const PeerGroup &group, const PeerList<kMostPeerMessages> &list, Stream stream) {
  if (group.count == 0) return cudaSuccess;
  int64_t most = 0;
  for (int n = 0; n < group.count; ++n) most = std::max(most, list.messages[n].bytes);
  const dim3 blocks(static_cast<unsigned>(group.place.layout.lanes_of(most)), static_cast<unsigned>(group.ways));
  if (group.count > kFew) {
    peer_messages_kernel<<<blocks, kThreads, 0, stream>>>(group, list);
    return cudaGetLastError();
  }
  PeerList<kFew> few;
  std::copy_n(list.first, group.ways + 1, few.first);
  std::copy_n(list.messages, group.count, few.messages);
  peer_messages_kernel<<<blocks, kThreads, 0, stream>>>(group, few);
  return cudaGetLastError();
}

int load_peer_messages() {
  return load_kernels(peer_messages_kernel<kFew>, peer_messages_kernel<kMostPeerMessages>);
}

}  // namespace lasp::gpu
