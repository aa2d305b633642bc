// lasp_context_*.
#include "engine/context.h"

#include <cstdio>
#include <memory>
#include <optional>

#include "handles.h"
#include "structs.h"

using namespace lasp;

lasp_status lasp_context_options_init(lasp_context_options *options, size_t size) {
  return guarded([&] {
    const lasp_context_options macro = LASP_CONTEXT_OPTIONS_INIT;
    init_struct(options, size, macro, "lasp_context_options");
  });
}

lasp_status lasp_context_create(int32_t header_abi, lasp_comm *comm, const lasp_context_options *options,
                                lasp_context **context) {
  return guarded([&] {
    if (header_abi != LASP_ABI)
      throw fail(LASP_ERROR_ABI_MISMATCH, "header_abi = %d: this library has ABI %d; build against its own lasp.h",
                 header_abi, LASP_ABI);
    lasp_comm &borrowed = live(comm, "comm");
    require_pointer(context, "context");
    lasp_context_options settings = LASP_CONTEXT_OPTIONS_INIT;
    if (options != nullptr) settings = read_struct(options, "options");
    const InUse in_use(borrowed.engine, "lasp_context_create");
    borrowed.engine.require_usable();
    std::unique_ptr<lasp_context> made(
        new lasp_context{.comm = &borrowed, .engine = Context(borrowed.engine, settings)});
    made->engine.tracing().start_by_environment();
    register_handle(made.get(), Kind::kContext);
    ++borrowed.users;
    *context = made.release();
  });
}

lasp_status lasp_context_get_device(const lasp_context *context, int32_t *device, int32_t *device_index) {
  return guarded([&] {
    const lasp_context &c = live(context, "context");
    if (device != nullptr) *device = c.engine.device_kind();
    if (device_index != nullptr) *device_index = c.engine.device_index();
  });
}

lasp_status lasp_context_get_async_error(lasp_context *context, lasp_status *status, char *text, size_t capacity) {
  return guarded([&] {
    lasp_context &c = live(context, "context");
    lasp_status &out = require_pointer(status, "status");
    if (capacity > 0) require_pointer(text, "text");
    // Not InUse: it may come from any thread, and a call that came meanwhile would be refused.
    const std::optional<Error> error = c.engine.async_error();
    out = error ? error->status : LASP_OK;
    if (capacity > 0) std::snprintf(text, capacity, "%s", error ? error->sentence.c_str() : "");
  });
}

lasp_status lasp_context_abort(lasp_context *context) {
  return guarded([&] { live(context, "context").engine.abort(); });
}

lasp_status lasp_context_destroy(lasp_context *context) {
  return guarded([&] {
    if (context == nullptr) return;
    lasp_context &c = live(context, "context");
    lasp_comm &comm = *c.comm;
    {
      const InUse in_use(comm.engine, "lasp_context_destroy");
      const int32_t users = c.users.load();
      if (users > 0) throw fail(LASP_ERROR_IN_USE, "context: %d plan(s) still use it; destroy them first", users);
      unregister_handle(context);
      delete context;
    }
    --comm.users;  // from here on another thread may destroy it
  });
}
