// A pass by its stages, as a caller with a collective of its own makes it, in memory that does not stay where it
// was: what lies between the stages is moved, and the workspace is spoilt.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include <lasp/lasp.h>

#include "support/guarded_buffer.h"

namespace lasp_test {

// Brings the ranks' maps together: `bytes` bytes of each, `own` of this one's, `all` in the order of the ranks.
using AllGather = std::function<void(int32_t rank, const void *own, void *all, size_t bytes)>;

// What one rank's stages of one direction need beside the pass's buffers.
struct StageMemory {
  // `state_bytes` of each run of tokens; there are as many maps.
  StageMemory(const lasp_plan_info &info, size_t state_bytes, bool backward);
  // "" or what was written outside of these.
  std::string misdeeds() const;

  std::unique_ptr<GuardedBuffer> map, incoming, carry, moved;
};

lasp_buffer whole(const std::unique_ptr<GuardedBuffer> &buffer);
lasp_const_buffer whole_const(const std::unique_ptr<GuardedBuffer> &buffer);

// The args of the first stage: nothing that it does not use.
lasp_forward_args for_summarize(const lasp_forward_args &args, const StageMemory &memory, bool carry);
lasp_backward_args for_summarize(const lasp_backward_args &args, const StageMemory &memory, bool carry);
// And of the second: the carry is at another place.
lasp_forward_args for_apply(const lasp_forward_args &args, const StageMemory &memory, bool carry);
lasp_backward_args for_apply(const lasp_backward_args &args, const StageMemory &memory, bool carry);

// Host memory, or a device's on its stream.
void move_bytes(void *to, const void *from, size_t bytes, lasp_stream stream);
void spoil(const lasp_buffer &buffer, lasp_stream stream);
// What the second stage does not find: the workspace, and without a carry the state cache of the first.
void spoil_between(const lasp_forward_args &args, bool carry, lasp_stream stream);
void spoil_between(const lasp_backward_args &args, bool carry, lasp_stream stream);

inline lasp_status summarize(lasp_plan *plan, const lasp_forward_args *args, lasp_stream stream) {
  return lasp_forward_summarize(plan, args, stream);
}
inline lasp_status summarize(lasp_plan *plan, const lasp_backward_args *args, lasp_stream stream) {
  return lasp_backward_summarize(plan, args, stream);
}
inline lasp_status apply(lasp_plan *plan, const lasp_forward_args *args, lasp_stream stream) {
  return lasp_forward_apply(plan, args, stream);
}
inline lasp_status apply(lasp_plan *plan, const lasp_backward_args *args, lasp_stream stream) {
  return lasp_backward_apply(plan, args, stream);
}

}  // namespace lasp_test
