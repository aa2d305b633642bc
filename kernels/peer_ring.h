// The ring's exchange over lanes of peer memory, in one launch: what comes from the rank before is kept, and goes
// on to the next one with this rank's map applied to it. A piece goes on as soon as it has come.
#pragma once

#include "known_factors.h"
#include "peer_lanes.h"

namespace lasp::gpu {

struct PeerRing {
  PeerPlace place;
  int32_t from = -1, to = -1;  // ranks; -1: nobody
  StateShape shape;
  float *incoming = nullptr;         // [rows, H, K, V]: the state that has come; with `from`
  const float *own_state = nullptr;  // likewise: this rank's map, with `to`
  // With both: its factor, [rows, H(, K)], coded. Null: it is known, from `log_decay` [H], or where that is
  // null, 1.
  const float *own_factor = nullptr;
  KnownFactor known;
  const float *log_decay = nullptr;
};

int launch_peer_ring(const PeerRing &ring, Stream stream);
int load_peer_ring();

}  // namespace lasp::gpu
