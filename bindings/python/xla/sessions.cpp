// Contexts and plans that are kept between calls of XLA's.
#include "sessions.h"

#include "frame.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <vector>

namespace lasp::xla {
namespace {

constexpr size_t kMostPlans = 64;  // of a session; the one that was not used for longest goes

std::atomic<int32_t> cpu_devices{1};

// Never destroyed: at the end of a process other libraries' threads may still be in a call, and devices be gone.
struct Idle {
  std::mutex mutex;
  std::vector<std::unique_ptr<Session>> sessions;
};
Idle &idle() {
  static Idle *const all = new Idle;
  return *all;
}

int32_t cpu_threads() {
  lasp_build_info info = LASP_BUILD_INFO_INIT;
  check(lasp_get_build_info(&info));
  return std::max(1, info.cpu_count / cpu_devices.load());
}

}  // namespace

void share_cpus(int32_t devices) { cpu_devices = std::max(1, devices); }

Session::Session(const Place &place) : place_(place) {
  if (place.nranks == 1)
    check(lasp_comm_create_self(&comm_));
  else
    check(lasp_comm_create_detached(place.rank, place.nranks, &comm_));
  lasp_context_options options = LASP_CONTEXT_OPTIONS_INIT;
  options.device = place.device;
  options.device_index = place.device == LASP_DEVICE_CPU ? -1 : place.ordinal;
  if (place.device == LASP_DEVICE_CPU) options.cpu_threads = cpu_threads();
  const lasp_status status = lasp_context_create(LASP_ABI, comm_, &options, &context_);
  if (status != LASP_OK) {
    const Refusal refusal(status, lasp_last_error());
    lasp_comm_destroy(comm_);
    throw refusal;
  }
}

Session::~Session() {
  for (auto &[values, plan] : plans_) lasp_plan_destroy(plan);
  lasp_context_destroy(context_);
  lasp_comm_destroy(comm_);
}

lasp_plan *Session::plan(const Values &values, const lasp_problem &problem) {
  const auto found =
      std::find_if(plans_.begin(), plans_.end(), [&](const auto &kept) { return kept.first == values; });
  if (found != plans_.end()) {
    plans_.splice(plans_.begin(), plans_, found);
    return found->second;
  }
  plans_.emplace_front(values, nullptr);
  lasp_plan *&plan = plans_.front().second;
  const lasp_status status = lasp_plan_create(context_, &problem, &plan);
  if (status != LASP_OK) {
    plans_.pop_front();
    check(status);
  }
  // On a GPU its work may still run: the library waits for it, or keeps what it uses, as lasp_plan_destroy says.
  if (plans_.size() > kMostPlans) {
    lasp_plan_destroy(plans_.back().second);
    plans_.pop_back();
  }
  return plan;
}

std::unique_ptr<Session> borrow(const Place &place) {
  {
    const std::lock_guard lock(idle().mutex);
    auto &sessions = idle().sessions;
    const auto found = std::find_if(sessions.rbegin(), sessions.rend(),
                                    [&](const auto &session) { return session->place() == place; });
    if (found != sessions.rend()) {
      auto session = std::move(*found);
      sessions.erase(std::next(found).base());
      return session;
    }
  }
  return std::make_unique<Session>(place);
}

void give_back(std::unique_ptr<Session> session) {
  const std::lock_guard lock(idle().mutex);
  idle().sessions.push_back(std::move(session));
}

}  // namespace lasp::xla
