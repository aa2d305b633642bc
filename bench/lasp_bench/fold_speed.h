// What composing two maps takes on a device, by lasp_maps_compose.
#pragma once

#include <cstdint>

namespace bench {

struct FoldSpeed {
  double launch_us = 0;  // of a map so small that nothing else counts
  double rate = 0;       // bytes of the map in a microsecond; of dense ones FLOP in a microsecond
};

// `dense`: maps of the delta rule, of which both parts are composed, each a launch.
FoldSpeed measure_fold(int32_t device, int32_t threads, bool dense);

}  // namespace bench
