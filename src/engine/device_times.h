// How the times that a device gave to a trace are to be read.
#pragma once

#include <cstdint>

namespace lasp {

struct DeviceTimes {
  // A time t of the device is base_ns + scale * (t - base_ns) of the host, give or take uncertainty_ns.
  int64_t base_ns = 0, uncertainty_ns = 0;
  double scale = 1;
  uint64_t unfinished = 0;  // pieces of work that the device has not done yet
  uint64_t left_out = 0;    // those for which no event was free, or all where the clock is not known
};

}  // namespace lasp
