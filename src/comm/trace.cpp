#include "comm/trace.h"

#include <exception>

namespace lasp {

TraceSpan::TraceSpan(Trace *trace, Traced kind, const char *name, int32_t peer)
    : trace_(trace), kind_(kind), name_(name), peer_(peer) {
  if (trace_ == nullptr) return;
  exceptions_ = std::uncaught_exceptions();
  begin_ns_ = Trace::now();
}

TraceSpan::~TraceSpan() {
  if (trace_ == nullptr) return;
  TraceRecord record;
  record.kind = kind_;
  record.flags = std::uncaught_exceptions() > exceptions_ ? TraceRecord::kFailed : 0;
  record.begin_ns = begin_ns_;
  record.end_ns = Trace::now();
  record.name = name_;
  record.peer = peer_;
  trace_->add(record);
}

}  // namespace lasp
