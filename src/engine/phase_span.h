// A phase of a pass in the trace, if there is one: on the host, and on the device where the phase is enqueued.
#pragma once

#include "comm/trace.h"
#include "engine/passes.h"

namespace lasp {

class Passes::PhaseSpan {
 public:
  PhaseSpan(Passes &passes, const char *name)
      : passes_(passes),
        host_(passes.comm().trace(), Traced::kPhase, name),
        device_(passes.comm().trace() != nullptr ? passes.begin_span(name) : -1) {}
  ~PhaseSpan() {
    if (device_ >= 0) passes_.end_span(device_);
  }
  PhaseSpan(const PhaseSpan &) = delete;
  PhaseSpan &operator=(const PhaseSpan &) = delete;

 private:
  Passes &passes_;
  TraceSpan host_;
  int32_t device_;
};

}  // namespace lasp
