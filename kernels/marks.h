// Marks that a captured graph leaves where its exchanges begin and end, each time that it is replayed, for the host
// to see while the graph runs. A launch that is there anyway leaves them, where there is one at the place.
#pragma once

#include "launch.h"

namespace lasp::gpu {

// In host memory that the device can write.
struct ReplayMarks {
  uint32_t begun = 0, ended = 0;  // exchanges so far
  int32_t peer = -1;              // whom the last one begun waits for first
};

// One mark.
struct Mark {
  ReplayMarks *marks = nullptr;  // as the device sees them; null: there is nothing to mark
  bool ends = false;             // the end of an exchange, else the beginning
  int32_t peer = -1;             // of a beginning
};
int launch_mark(const Mark &, Stream stream);
int load_marks();

// What launch.h says of them, and a mark ahead of it: also where there is nothing else to do.
int launch_state_scan(const StateScan &, const Mark &, Stream stream);
int launch_state_join(const StateJoin &, const Mark &, Stream stream);
int launch_segment_sums(const SegmentSums &, const Mark &, Stream stream);
int launch_segment_totals(const SegmentTotals &, const Mark &, Stream stream);
struct DeltaMaps;
int launch_delta_maps(const DeltaMaps &, const Mark &, Stream stream);
// to = from, or zero where that is null.
int launch_copy(float *to, const float *from, int64_t floats, const Mark &, Stream stream);

}  // namespace lasp::gpu
