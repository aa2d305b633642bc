// When a device did what a trace has of it: a pair of events around each piece of work, read when they have passed.
// Nothing here waits for the device's work; reading its clock takes up to half a second on a device that is stuck.
// A piece for which no pair is free, or without a clock, is counted and left out.
#pragma once

#include <vector>

#include "comm/trace.h"
#include "cuda/device/cuda_call.h"
#include "engine/device_times.h"

namespace lasp {

class DeviceTrace {
 public:
  // `clock` is a stream on which nobody waits: the device's clock is compared with the host's there. `exchange` is
  // lane 0. With the device current.
  DeviceTrace(Trace &trace, cudaStream_t clock, cudaStream_t exchange);

  const Trace &trace() const { return trace_; }
  // A piece of work begins on the stream. -1: it is left out. Neither throws.
  int32_t begin(const TraceRecord &record, cudaStream_t stream) noexcept;
  void end(int32_t span) noexcept;
  // Adds what has passed meanwhile to the trace, and says how the device's clock runs beside the host's.
  DeviceTimes collect() noexcept;

 private:
  struct Span {
    TraceRecord record;
    cuda::EventOwner begin, end;
    cudaStream_t stream = nullptr;
    bool ended = false, failed = false;
  };
  struct Moment {
    int64_t host_ns = 0, uncertainty_ns = 0;
    bool known = false;
  };
  void resolve() noexcept;
  bool add(Span &span) noexcept;
  Moment record_moment(cudaEvent_t event) noexcept;
  bool position_of(cudaEvent_t event, int64_t &ns) const noexcept;
  int32_t lane_of(cudaStream_t stream);

  Trace &trace_;
  cudaStream_t clock_;
  std::vector<Span> spans_;  // a ring
  uint64_t first_ = 0, next_ = 0, left_out_ = 0;
  std::vector<cudaStream_t> lanes_;
  // The moment from which the device's times count, and a later event, for the time between two events is a float.
  Moment base_;
  cuda::EventOwner anchor_, now_;
  int64_t anchor_ns_ = 0;
};

// A piece of work on a stream, for as long as it lives. Null: nothing.
class DeviceSpan {
 public:
  DeviceSpan(DeviceTrace *trace, const TraceRecord &record, cudaStream_t stream)
      : trace_(trace), span_(trace != nullptr ? trace->begin(record, stream) : -1) {}
  DeviceSpan(DeviceTrace *trace, const char *name, cudaStream_t stream)
      : DeviceSpan(trace, TraceRecord{.kind = Traced::kDevice, .name = name}, stream) {}
  ~DeviceSpan() {
    if (span_ >= 0) trace_->end(span_);
  }
  DeviceSpan(const DeviceSpan &) = delete;
  DeviceSpan &operator=(const DeviceSpan &) = delete;

  bool recorded() const { return span_ >= 0; }

 private:
  DeviceTrace *trace_;
  int32_t span_;
};

}  // namespace lasp
