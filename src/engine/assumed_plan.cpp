// What a plan would say, without its group: the very plan, on a comm behind which there is nobody.
#include <algorithm>

#include "base/status.h"
#include "comm/transport.h"
#include "core/schedules.h"
#include "engine/halo.h"
#include "engine/plan.h"

namespace lasp {
namespace {

lasp_context_options options_of(const lasp_placement &placement) {
  lasp_context_options options = LASP_CONTEXT_OPTIONS_INIT;
  options.device = placement.device;
  options.cpu_threads = 1;
  return options;
}

// A rank of a group of which nobody is there.
struct AssumedRank {
  explicit AssumedRank(const lasp_placement &placement)
      : end(make_detached_transport(placement.rank, placement.nranks)),
        comm(end.table, end.user, CommKind::kAssumed),
        context(comm, options_of(placement),
                placement.device == LASP_DEVICE_CUDA ? make_assumed_cuda_device(comm, placement) : nullptr) {}

  TransportEnd end;  // owns nothing
  Comm comm;
  Context context;
};

lasp_plan_info info_by(Context &context, lasp_problem problem, int32_t schedule) {
  problem.schedule = schedule;
  return Plan(context, problem, std::nullopt).info();
}

// The larger of each number of bytes that the schedule decides.
void take_larger(lasp_plan_info &info, const lasp_plan_info &other) {
  for (uint64_t lasp_plan_info::*bytes :
       {&lasp_plan_info::workspace_forward_bytes, &lasp_plan_info::workspace_backward_bytes,
        &lasp_plan_info::workspace_add_bytes, &lasp_plan_info::forward_bytes_sent,
        &lasp_plan_info::backward_bytes_sent})
    info.*bytes = std::max(info.*bytes, other.*bytes);
}

}  // namespace

lasp_plan_info info_of(const lasp_problem &problem, const lasp_placement &placement) {
  AssumedRank rank(placement);
  lasp_plan_info info = info_by(rank.context, problem, problem.schedule);
  if (problem.schedule != LASP_SCHEDULE_AUTO || placement.nranks == 1) return info;
  for (const ScheduleEntry &schedule : kSchedules)
    if (!schedule.waits && (problem.segment == 0 || schedule.serial))
      take_larger(info, info_by(rank.context, problem, schedule.value));
  return info;
}

lasp_halo_info info_of(const lasp_problem &problem, const lasp_placement &placement,
                       const lasp_halo_options &options) {
  AssumedRank rank(placement);
  const Plan plan(rank.context, problem, std::nullopt);
  return make_halo_plan(validate(options, plan.problem()), plan.ranges(), placement.rank).info();
}

}  // namespace lasp
