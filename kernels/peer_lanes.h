// Lanes between GPUs that can write each other's memory. Each rank has a window of memory that all ranks have
// mapped. From a sender to a receiver go lanes, which are first in, first out: the sender's block of a lane writes
// a piece of a message into the receiver's window and then counts it there; the receiver's block waits for the
// count, takes the piece out, and counts in the sender's window that its slot is free again. Counts only grow, so
// that a replayed graph goes on where the last replay ended.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lasp::gpu {

// Lanes from one rank to another, and blocks of a launch. Blocks wait for those of other ranks' launches, so all of
// a launch should fit a GPU at once.
inline constexpr int kMostLanes = 16, kMostLaneBlocks = 192, kLaneBlocksOfMultiprocessor = 2;
inline constexpr uint32_t kSlots = 4;  // of a lane
inline constexpr int64_t kSlotBytes = 32 << 10;
inline constexpr int64_t kLaneShare = 8 << 10;  // bytes of a message for which a lane more is worth it

// Where things lie in a rank's window. All ranks of a group have the same.
struct PeerLayout {
  int32_t ranks = 0, blocks = kMostLaneBlocks;  // of a launch, at most

  __host__ __device__ int lanes() const {
    const int most = blocks / (2 * (ranks > 1 ? ranks - 1 : 1));
    return most < 1 ? 1 : most > kMostLanes ? kMostLanes : most;
  }
  // Of a message, on both its sides.
  __host__ __device__ int lanes_of(int64_t bytes) const {
    const int64_t wanted = (bytes + kLaneShare - 1) / kLaneShare;
    return wanted < 1 ? 1 : wanted > lanes() ? lanes() : static_cast<int>(wanted);
  }
  // What a lane has of it.
  __host__ __device__ int64_t share_of(int64_t bytes) const {
    const int64_t n = lanes_of(bytes);
    return ((bytes + n - 1) / n + 15) / 16 * 16;
  }

  // Offsets of pieces on their way, in the receiver's window.
  __host__ __device__ int64_t slots(int32_t sender, int lane) const {
    return lane_number(sender, lane) * kSlots * kSlotBytes;
  }
  // Offsets of two counts of a lane's pieces: of those that were written, in the receiver's window, and of those
  // that were taken out, in the sender's.
  __host__ __device__ int64_t written(int32_t sender, int lane) const { return count_at(0, sender, lane); }
  __host__ __device__ int64_t taken(int32_t receiver, int lane) const { return count_at(1, receiver, lane); }
  // The same as the window's own rank counts for itself.
  __host__ __device__ int64_t sent(int32_t receiver, int lane) const { return count_at(2, receiver, lane); }
  __host__ __device__ int64_t received(int32_t sender, int lane) const { return count_at(3, sender, lane); }
  // Not 0: messages were ended, and what came last may be void. Nothing is sent any more.
  __host__ __device__ int64_t dead() const { return count_at(4, 0, 0); }
  // Every rank's window, as this rank has mapped it: pointers by rank.
  __host__ __device__ int64_t windows() const { return count_at(4, 0, 1); }
  int64_t bytes() const { return windows() + ranks * static_cast<int64_t>(sizeof(void *)); }

 private:
  static constexpr int64_t kCountBytes = 64;  // so that no two lie in one sector
  __host__ __device__ int64_t lane_number(int32_t peer, int lane) const {
    return static_cast<int64_t>(peer) * lanes() + lane;
  }
  __host__ __device__ int64_t count_at(int kind, int32_t peer, int lane) const {
    const int64_t all = static_cast<int64_t>(ranks) * lanes();
    return all * kSlots * kSlotBytes + (kind * all + lane_number(peer, lane)) * kCountBytes;
  }
};

// A rank's place.
struct PeerPlace {
  PeerLayout layout;
  int32_t rank = 0;
  std::byte *window = nullptr;      // this rank's
  const uint32_t *ended = nullptr;  // in host memory; not 0: nothing is waited for any more, and what comes is void
};

}  // namespace lasp::gpu
