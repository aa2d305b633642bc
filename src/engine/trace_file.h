// A trace as a file: JSON of the Trace Event Format, one event a line. The rank is the process; its calls, phases
// and waits are one thread, each stream of its device another, and messages under way have tracks of their own.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>

#include "comm/trace.h"
#include "engine/device_times.h"

namespace lasp {

struct TraceOrigin {
  int32_t rank, nranks;
  std::string transport, device;
  DeviceTimes times;
};

// False, with errno, where the file does not take it.
bool write_trace(std::FILE *file, const Trace &trace, const TraceOrigin &origin);

}  // namespace lasp
