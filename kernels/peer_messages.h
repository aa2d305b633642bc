// Messages between GPUs over lanes of peer memory.
#pragma once

#include "launch.h"
#include "peer_lanes.h"

namespace lasp::gpu {

// All messages of a group go in one launch. With two, the second one here could wait for a rank that waits for it
// there.
inline constexpr int kMostPeerMessages = 1024;

struct PeerMessage {
  std::byte *data = nullptr;
  int64_t bytes = 0;
  int32_t peer = 0;
  bool is_send = false;
};

// A way is all that goes to one peer, or all that comes from it.
struct PeerGroup {
  PeerPlace place;
  int32_t count = 0, ways = 0;  // messages; ways
};
// Its messages in order of ways. Ways to a peer come first, since others may wait for what they bring.
template <int kMost>
struct PeerList {
  uint16_t first[kMost + 1] = {};  // by way, into `messages`; one more for the end
  PeerMessage messages[kMost] = {};
};

int launch_peer_messages(const PeerGroup &group, const PeerList<kMostPeerMessages> &list, Stream stream);
int load_peer_messages();

}  // namespace lasp::gpu
