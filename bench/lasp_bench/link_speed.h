// Latency and bandwidth of a transport as the library's exchange sees it, by public calls alone.
#pragma once

#include <cstdint>

#include "group.h"

namespace bench {

struct LinkSpeed {
  double latency_us = 0, bandwidth_gbs = 0;
  uint64_t small_bytes = 0, large_bytes = 0;
  double small_us = 0, large_us = 0;  // one way
};

// Two ranks without tokens: a forward pass then only sends rank 0's state to rank 1, a backward pass rank 1's to
// rank 0, so that the two are a ping-pong. The same two passes on a group of one are taken off, as what the library
// does besides. Latency and bandwidth go through the times of a small and of a large state.
LinkSpeed measure_link(Group &group, int32_t device = LASP_DEVICE_CPU);

// One way of an all-gather of small states among so many ranks, in microseconds, measured in the same way.
double measure_gather_us(Group &group, int32_t ranks, int32_t device);

}  // namespace bench
