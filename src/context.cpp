#include "context.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <cstdarg>
#include <cstdio>

#include "status.h"

namespace lasp {
namespace {

constexpr int64_t kDefaultTimeLimitMs = 600'000;
constexpr int32_t kMaxThreads = 4096;
// Shared memory or a fast network between hosts; only the ratio matters to the choice of schedule.
constexpr Link kAssumedLink{10.0, 10.0};

lasp_context_options with_defaults(lasp_context_options o, const Comm &comm) {
  if (o.device == LASP_DEVICE_CUDA)
    throw fail(LASP_ERROR_NOT_BUILT, "device = LASP_DEVICE_CUDA: this build has no CUDA backend");
  if (o.device != LASP_DEVICE_CPU)
    throw fail(LASP_ERROR_INVALID_ARGUMENT, "device = %d: must be one of LASP_DEVICE_*", o.device);
  if (o.device_index != 0)
    throw fail(LASP_ERROR_INVALID_ARGUMENT, "device_index = %d: must be 0 on the CPU", o.device_index);
  if (o.time_limit_ms < -1)
    throw fail(LASP_ERROR_INVALID_ARGUMENT, "time_limit_ms = %lld: must be -1 (none), 0 (default) or positive",
               static_cast<long long>(o.time_limit_ms));
  if (o.cpu_threads < 0 || o.cpu_threads > kMaxThreads)
    throw fail(LASP_ERROR_INVALID_ARGUMENT, "cpu_threads = %d: must be 0 (default) to %d", o.cpu_threads,
               kMaxThreads);
  if (o.log_level < LASP_LOG_OFF || o.log_level > LASP_LOG_DEBUG)
    throw fail(LASP_ERROR_INVALID_ARGUMENT, "log_level = %d: must be one of LASP_LOG_*", o.log_level);
  if (!std::isfinite(o.latency_us) || o.latency_us < 0)
    throw fail(LASP_ERROR_INVALID_ARGUMENT, "latency_us = %g: must be finite and not negative", o.latency_us);
  if (!std::isfinite(o.bandwidth_gbs) || o.bandwidth_gbs < 0)
    throw fail(LASP_ERROR_INVALID_ARGUMENT, "bandwidth_gbs = %g: must be finite and not negative", o.bandwidth_gbs);
  if (o.profiler_ranges != 0 && o.profiler_ranges != 1)
    throw fail(LASP_ERROR_INVALID_ARGUMENT, "profiler_ranges = %d: must be 0 or 1", o.profiler_ranges);
  if (o.reserved != 0) throw fail(LASP_ERROR_INVALID_ARGUMENT, "options.reserved = %d: must be 0", o.reserved);
  if (o.time_limit_ms == 0) o.time_limit_ms = kDefaultTimeLimitMs;
  if (o.cpu_threads == 0) o.cpu_threads = std::max(1, usable_cpus() / comm.local_ranks());
  return o;
}

}  // namespace

int32_t usable_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;  // more CPUs than the set can name
  return std::max(1, CPU_COUNT(&set));
}

Context::Context(Comm &comm, const lasp_context_options &options)
    : comm_(comm), options_(with_defaults(options, comm)), pool_(options_.cpu_threads) {
  link_ = {options_.latency_us, options_.bandwidth_gbs};
  link_source_ = "given by the caller";
  if (link_.latency_us == 0 || link_.bandwidth_gbs == 0) {
    const bool known = comm.latency_us() > 0 && comm.bandwidth_gbs() > 0;
    link_source_ = known ? "stated by the transport" : "assumed";
    if (link_.latency_us == 0) link_.latency_us = known ? comm.latency_us() : kAssumedLink.latency_us;
    if (link_.bandwidth_gbs == 0) link_.bandwidth_gbs = known ? comm.bandwidth_gbs() : kAssumedLink.bandwidth_gbs;
  }
  log(LASP_LOG_INFO, "context: rank %d of %d over %s, %d CPU threads", comm.rank(), comm.nranks(),
      comm.name().c_str(), pool_.threads());
}

void Context::log(int32_t level, const char *format, ...) const {
  if (options_.log == nullptr || level > options_.log_level) return;
  char text[1024];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  options_.log(options_.log_user, level, text);
}

}  // namespace lasp
