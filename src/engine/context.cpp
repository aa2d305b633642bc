#include "engine/context.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/status.h"
#include "base/thread_pool.h"
#include "engine/link_setting.h"
#include "exchange/agreement.h"
#include "exchange/exchange_log.h"

namespace lasp {
namespace {

constexpr int64_t kDefaultTimeLimitMs = 600'000;
constexpr int32_t kMaxThreads = 4096;

lasp_context_options with_defaults(lasp_context_options o, const Comm &comm) {
  if (o.device != LASP_DEVICE_AUTO && o.device != LASP_DEVICE_CPU && o.device != LASP_DEVICE_CUDA)
    throw fail(LASP_ERROR_INVALID_ARGUMENT, "device = %d: must be one of LASP_DEVICE_*", o.device);
  if (o.device_index < -1)
    throw fail(LASP_ERROR_INVALID_ARGUMENT,
               "device_index = %d: must be -1 (the comm's, else the current one) or a "
               "CUDA ordinal",
               o.device_index);
  const bool automatic = o.device == LASP_DEVICE_AUTO;
  if (automatic) o.device = comm.memory();
  if (o.device == LASP_DEVICE_CPU && o.device_index > 0)
    throw fail(LASP_ERROR_INVALID_ARGUMENT, "device_index = %d: must be -1 or 0 on the CPU%s", o.device_index,
               automatic ? ", where the context is by its comm; a GPU is asked for by LASP_DEVICE_CUDA" : "");
  if (o.device == LASP_DEVICE_CPU && comm.memory() != LASP_DEVICE_CPU)
    throw fail(LASP_ERROR_INVALID_ARGUMENT,
               "comm: the %s transport carries device memory, but device is LASP_DEVICE_CPU", comm.name().c_str());
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
  if (o.verify_messages != 0 && o.verify_messages != 1)
    throw fail(LASP_ERROR_INVALID_ARGUMENT, "verify_messages = %d: must be 0 or 1", o.verify_messages);
  if (o.check_values != 0 && o.check_values != 1)
    throw fail(LASP_ERROR_INVALID_ARGUMENT, "check_values = %d: must be 0 or 1", o.check_values);
  if (o.reserved != 0) throw fail(LASP_ERROR_INVALID_ARGUMENT, "options.reserved = %d: must be 0", o.reserved);
  if (o.verify_messages == 1 && o.device != LASP_DEVICE_CPU)
    throw fail(LASP_ERROR_UNSUPPORTED, "verify_messages = 1: on the CPU only");
  if (o.time_limit_ms == 0) o.time_limit_ms = kDefaultTimeLimitMs;
  if (o.time_limit_ms > kLongestLimitMs) o.time_limit_ms = -1;
  if (o.device == LASP_DEVICE_CUDA) o.cpu_threads = 1;  // the GPU computes
  if (o.cpu_threads == 0) o.cpu_threads = std::max(1, usable_cpus() / comm.local_ranks());
  return o;
}

std::unique_ptr<Device> make_device(Comm &comm, const lasp_context_options &options, const WaitPolicy &policy) {
  const auto make = options.device == LASP_DEVICE_CUDA ? make_cuda_device : make_cpu_device;
  return make(comm, options, policy);
}

}  // namespace

Context::Context(Comm &comm, const lasp_context_options &options, std::unique_ptr<Device> device)
    : comm_(comm),
      options_(with_defaults(options, comm)),
      wait_policy_{options_.time_limit_ms, Log(options_.log_level, options_.log, options_.log_user),
                   options_.interrupted, options_.interrupted_user},
      device_(device ? std::move(device) : make_device(comm, options_, wait_policy_)),
      tracing_(comm, *device_, wait_policy_.log) {
  find_link();
  log().write(LASP_LOG_INFO, "context: rank %d of %d over %s, %s", comm.rank(), comm.nranks(), comm.name().c_str(),
              device_->description().c_str());
}

// Each number by itself is the caller's, else that of LASP_LINK, else the transport's, which knows both or none.
void Context::find_link() {
  const GivenLink given = link_by_environment();
  link_ = device_->assumed_link();
  link_source_ = "assumed";
  if (comm_.latency_us() > 0 && comm_.bandwidth_gbs() > 0) {
    link_.latency_us = comm_.latency_us(), link_.bandwidth_gbs = comm_.bandwidth_gbs();
    link_.round_us = 0;  // the device's is that of the link which it assumes
    link_source_ = "stated by the transport";
  }
  if (given.replace(link_)) link_source_ = "by LASP_LINK";
  if (options_.latency_us > 0) link_.latency_us = options_.latency_us;
  if (options_.bandwidth_gbs > 0) link_.bandwidth_gbs = options_.bandwidth_gbs;
  const int given_by_caller = (options_.latency_us > 0) + (options_.bandwidth_gbs > 0);
  if (given_by_caller > 0)
    link_source_ = given_by_caller == 2 ? "given by the caller" : "one of them given by the caller";
}

void Context::gather(const void *own, void *all, size_t bytes) {
  if (comm_.assumes_others()) {
    for (int32_t rank = 0; rank < comm_.nranks(); ++rank)
      std::memcpy(static_cast<std::byte *>(all) + static_cast<size_t>(rank) * bytes, own, bytes);
    return;
  }
  ExchangeLog log(wait_policy_.log, comm_);
  device_->gather(own, all, bytes);
  if (!log.wanted() || comm_.nranks() == 1) return;
  for (int32_t peer = 0; peer < comm_.nranks(); ++peer) {
    if (peer == comm_.rank()) continue;
    log.add(true, peer, bytes);
    log.add(false, peer, bytes);
  }
  log.write("problems");
}

void Context::abort() {
  comm_.abort();
  device_->end_messages();
}

std::optional<Error> Context::async_error() {
  if (std::optional<Error> error = comm_.async_error()) {
    device_->end_messages();
    return error;
  }
  try {
    device_->check();
  } catch (const Error &error) {
    if (comm_.async_status() != LASP_OK) device_->end_messages();
    return error;
  }
  return std::nullopt;
}

}  // namespace lasp
