// How blocks use lanes of peer memory (peer_lanes.h).
#pragma once

#include <cuda/atomic>

#include "peer_lanes.h"

namespace lasp::gpu {

using Count = cuda::atomic_ref<uint32_t, cuda::thread_scope_system>;

__device__ inline Count count_in(std::byte *place) { return Count(*reinterpret_cast<uint32_t *>(place)); }

// By one thread: until the count has reached `least`. False: the messages were ended.
__device__ inline bool wait_for(std::byte *place, uint32_t least, const volatile uint32_t *ended) {
  const Count count = count_in(place);
  constexpr uint32_t kLooks = 256;  // at the count, before one at the host's memory, which is far
  for (uint32_t n = 1; static_cast<int32_t>(count.load(cuda::memory_order_acquire) - least) < 0; ++n)
    if (n % kLooks == 0) {
      if (*ended != 0) return false;
      __nanosleep(100);
    }
  return true;
}

// One side of a lane: the sender's, which waits for slots to be free, or the receiver's, which waits for pieces.
struct Side {
  uint32_t *own;              // pieces so far
  std::byte *awaited, *told;  // the counts that the other side and this one write
  std::byte *slots;           // the first one
  uint32_t ahead;             // of what is awaited
};

__device__ inline Side side_of(const PeerPlace &p, int lane, int32_t peer, bool sends) {
  const PeerLayout &at = p.layout;
  std::byte *const theirs = reinterpret_cast<std::byte *const *>(p.window + at.windows())[peer];
  if (sends)
    return {reinterpret_cast<uint32_t *>(p.window + at.sent(peer, lane)), p.window + at.taken(peer, lane),
            theirs + at.written(p.rank, lane), theirs + at.slots(p.rank, lane), 1 - kSlots};
  return {reinterpret_cast<uint32_t *>(p.window + at.received(peer, lane)), p.window + at.written(peer, lane),
          theirs + at.taken(p.rank, lane), p.window + at.slots(peer, lane), 1};
}

// Not 0: what follows on the stream may be made of what did not come.
__device__ inline uint32_t *dead_word(const PeerPlace &p) {
  return reinterpret_cast<uint32_t *>(p.window + p.layout.dead());
}
// By the block: other blocks of the launch may write the word meanwhile.
__device__ inline bool is_dead(const PeerPlace &p) {
  return __syncthreads_or(threadIdx.x == 0 && *dead_word(p) != 0) != 0;
}

}  // namespace lasp::gpu
