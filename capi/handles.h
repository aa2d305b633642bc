// The objects behind the opaque handles, and the register of live ones: a handle that was destroyed, or is of
// another kind, is recognised without touching its memory.
#pragma once

#include <lasp/lasp.h>

#include "comm/comm.h"
#include "engine/context.h"
#include "engine/halo.h"
#include "engine/plan.h"
#include "guarded.h"

struct lasp_comm {
  lasp::Comm engine;
  std::atomic<int32_t> users{0};  // contexts
};

struct lasp_context {
  lasp_comm *comm;
  lasp::Context engine;
  std::atomic<int32_t> users{0};  // plans
};

struct lasp_plan {
  lasp_context *context;
  lasp::Plan engine;
  std::atomic<int32_t> users{0};  // halos
};

struct lasp_halo {
  lasp_plan *plan;
  lasp::Halo engine;
};

namespace lasp {

enum class Kind { kComm, kContext, kPlan, kHalo };
Kind kind_of(const lasp_comm *);
Kind kind_of(const lasp_context *);
Kind kind_of(const lasp_plan *);
Kind kind_of(const lasp_halo *);

void register_handle(const void *handle, Kind kind);
void unregister_handle(const void *handle);
// Throws LASP_ERROR_INVALID_HANDLE unless it is a live handle of this kind.
void require_live(const void *handle, Kind kind, const char *name);

template <class Handle>
Handle &live(Handle *handle, const char *name) {
  require_pointer(handle, name);
  require_live(handle, kind_of(handle), name);
  return *handle;
}

// Where an assumed rank is (capi/plan.cpp).
void require_placement(const lasp_placement &placement);

// A CPU context has no streams.
inline void require_stream(const lasp_plan &plan, lasp_stream stream) {
  if (stream != nullptr && plan.context->engine.device_kind() == LASP_DEVICE_CPU)
    throw fail(LASP_ERROR_INVALID_ARGUMENT, "stream: must be NULL on a CPU context");
}

// Held for the length of a call: one comm, with its contexts, plans and halos, is used by one thread at a time.
// `call` is its name, for the sentences of whatever goes wrong in it.
class InUse {
 public:
  InUse(Comm &comm, const char *call) : comm_(comm) {
    if (comm.in_use.exchange(true, std::memory_order_acquire))
      throw fail(LASP_ERROR_IN_USE,
                 "context: another thread is inside a call on it or on another context of its comm");
    comm.enter(call);
    if (comm.trace() != nullptr) begin_span();
  }
  ~InUse() {
    if (comm_.trace() != nullptr) end_span();
    comm_.in_use.store(false, std::memory_order_release);
  }
  InUse(const InUse &) = delete;
  InUse &operator=(const InUse &) = delete;

 private:
  void begin_span();
  void end_span() noexcept;

  Comm &comm_;
  int64_t begin_ns_ = 0;  // 0: there was no trace
  int exceptions_ = 0;
};

// The body of a call that all ranks make: when it fails, the others are told, who would wait for this rank. Of what
// this rank refuses (1xx, 2xx) they are told when `others_wait` says so by then: plan creation has ways of its own,
// and a pass may exchange nothing.
template <class Body>
void collective(Comm &comm, const bool &others_wait, Body body) {
  try {
    body();
  } catch (...) {
    comm.give_up(current_error(), others_wait);
    throw;
  }
}

}  // namespace lasp
