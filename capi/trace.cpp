// lasp_trace_*.
#include "handles.h"
#include "structs.h"

using namespace lasp;

lasp_status lasp_trace_start(lasp_context *context, const lasp_trace_options *options) {
  return guarded([&] {
    lasp_context &c = live(context, "context");
    lasp_trace_options settings = LASP_TRACE_OPTIONS_INIT;
    if (options != nullptr) settings = read_struct(options, "options");
    const InUse in_use(c.comm->engine, "lasp_trace_start");
    c.comm->engine.require_usable();
    c.engine.tracing().start(settings.max_records);
  });
}

lasp_status lasp_trace_stop(lasp_context *context) {
  return guarded([&] {
    lasp_context &c = live(context, "context");
    const InUse in_use(c.comm->engine, "lasp_trace_stop");
    c.engine.tracing().stop();
  });
}

lasp_status lasp_trace_write(lasp_context *context, const char *path) {
  return guarded([&] {
    lasp_context &c = live(context, "context");
    require_pointer(path, "path");
    const InUse in_use(c.comm->engine, "lasp_trace_write");
    c.engine.tracing().write(path);
  });
}
