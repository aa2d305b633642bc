// Marks that a captured graph leaves where its exchanges begin and end, each time that it is replayed, for the host
// to see while the graph runs.
#pragma once

#include "launch.h"

namespace lasp::gpu {

// In host memory that the device can write.
struct ReplayMarks {
  uint32_t begun = 0, ended = 0;  // exchanges so far
  int32_t peer = -1;              // whom the last one begun waits for first
};
// `marks` as the device sees it.
int launch_begin_mark(ReplayMarks *marks, int32_t peer, Stream stream);
int launch_end_mark(ReplayMarks *marks, Stream stream);
int load_marks();

}  // namespace lasp::gpu
