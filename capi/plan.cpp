// lasp_problem_init and lasp_plan_*.
#include "engine/plan.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "handles.h"
#include "structs.h"

using namespace lasp;

namespace lasp {

void require_placement(const lasp_placement &at) {
  require_place(at.rank, at.nranks);
  if (at.device != LASP_DEVICE_CPU && at.device != LASP_DEVICE_CUDA)
    throw fail(LASP_ERROR_INVALID_ARGUMENT, "placement.device = %d: must be LASP_DEVICE_CPU or LASP_DEVICE_CUDA",
               at.device);
  const bool gpu = at.device == LASP_DEVICE_CUDA;
  const auto check = [&](int32_t value, const char *name) {
    if (!gpu && value != 0)
      throw fail(LASP_ERROR_INVALID_ARGUMENT, "placement.%s = %d: must be 0 on the CPU", name, value);
    if (gpu && value <= 0)
      throw fail(LASP_ERROR_INVALID_ARGUMENT, "placement.%s = %d: must be the GPU's own", name, value);
  };
  check(at.capability, "capability");
  check(at.multiprocessors, "multiprocessors");
  if (at.reserved != 0) throw fail(LASP_ERROR_INVALID_ARGUMENT, "placement.reserved = %d: must be 0", at.reserved);
}

}  // namespace lasp

lasp_status lasp_problem_init(lasp_problem *problem, size_t size) {
  return guarded([&] {
    const lasp_problem macro = LASP_PROBLEM_INIT;
    init_struct(problem, size, macro, "lasp_problem");
  });
}

lasp_status lasp_plan_create(lasp_context *context, const lasp_problem *problem, lasp_plan **plan) {
  return guarded([&] {
    lasp_context &c = live(context, "context");
    Comm &comm = c.comm->engine;
    const InUse in_use(comm, "lasp_plan_create");
    comm.require_usable();
    std::unique_ptr<lasp_plan> made;
    collective(comm, false, [&] {
      c.engine.device().check();
      lasp_problem given{};
      std::optional<Error> refusal;  // the other ranks are to learn of it
      try {
        require_pointer(plan, "plan");
        given = read_struct(problem, "problem");
      } catch (const Error &error) {
        refusal = error;
      }
      made.reset(new lasp_plan{.context = &c, .engine = Plan(c.engine, given, std::move(refusal))});
      register_handle(made.get(), Kind::kPlan);
    });
    ++c.users;
    *plan = made.release();
  });
}

lasp_status lasp_plan_get_info(const lasp_plan *plan, lasp_plan_info *info) {
  return guarded([&] { write_struct(info, live(plan, "plan").engine.info(), "info"); });
}

lasp_status lasp_problem_get_info(const lasp_problem *problem, const lasp_placement *placement,
                                  lasp_plan_info *info) {
  return guarded([&] {
    const lasp_problem given = read_struct(problem, "problem");
    const lasp_placement at = read_struct(placement, "placement");
    require_placement(at);
    write_struct(info, info_of(given, at), "info");
  });
}

lasp_status lasp_plan_get_owners(const lasp_plan *plan, int64_t begin, int64_t end, int32_t *first_rank,
                                 int32_t *last_rank) {
  return guarded([&] {
    const lasp_plan &p = live(plan, "plan");
    require_pointer(first_rank, "first_rank");
    require_pointer(last_rank, "last_rank");
    const Owners owners = p.engine.owners(begin, end);
    *first_rank = owners.first;
    *last_rank = owners.last;
  });
}

lasp_status lasp_plan_describe(const lasp_plan *plan, char *text, size_t capacity, size_t *needed) {
  return guarded([&] {
    const std::string whole = live(plan, "plan").engine.describe();
    if (capacity > 0) {
      require_pointer(text, "text");
      const size_t length = std::min(whole.size(), capacity - 1);
      std::memcpy(text, whole.data(), length);
      text[length] = 0;
    }
    if (needed != nullptr) *needed = whole.size() + 1;
  });
}

lasp_status lasp_plan_prepare(lasp_plan *plan, lasp_stream stream) {
  return guarded([&] {
    lasp_plan &p = live(plan, "plan");
    Comm &comm = p.context->comm->engine;
    const InUse in_use(comm, "lasp_plan_prepare");
    comm.require_usable();
    const bool others_wait = p.context->engine.device_kind() != LASP_DEVICE_CPU && !comm.detached();
    collective(comm, others_wait, [&] {
      require_stream(p, stream);
      p.engine.passes().prepare(stream);
    });
  });
}

lasp_status lasp_plan_destroy(lasp_plan *plan) {
  return guarded([&] {
    if (plan == nullptr) return;
    lasp_plan &p = live(plan, "plan");
    lasp_context &c = *p.context;
    {
      const InUse in_use(c.comm->engine, "lasp_plan_destroy");
      const int32_t users = p.users.load();
      if (users > 0) throw fail(LASP_ERROR_IN_USE, "plan: %d halo(s) still use it; destroy them first", users);
      unregister_handle(plan);
      delete plan;
    }
    --c.users;
  });
}
