// A comm, a device and settings.
#pragma once

#include <lasp/lasp.h>

#include <cstdint>
#include <memory>
#include <optional>

#include "base/status.h"
#include "comm/comm.h"
#include "comm/wait.h"
#include "engine/device.h"
#include "engine/tracing.h"
#include "exchange/cost_model.h"

namespace lasp {

class Context {
 public:
  // Throws Error for options that are wrong or that this build cannot serve.
  Context(Comm &comm, const lasp_context_options &options) : Context(comm, options, nullptr) {}
  // On a device that is there already.
  Context(Comm &comm, const lasp_context_options &options, std::unique_ptr<Device> device);

  Comm &comm() { return comm_; }
  Device &device() { return *device_; }
  int32_t device_kind() const { return options_.device; }
  int32_t device_index() const { return device_->index(); }
  int32_t cpu_threads() const { return options_.cpu_threads; }
  const WaitPolicy &wait_policy() const { return wait_policy_; }
  const Log &log() const { return wait_policy_.log; }
  bool verify_messages() const { return options_.verify_messages != 0; }
  bool checks_values() const { return options_.check_values != 0; }
  // What the caller says of the link, else LASP_LINK, else the transport, else an assumption that the plan's
  // description owns up to.
  Link link() const { return link_; }
  const char *link_source() const { return link_source_; }
  // Every rank's record, by host messages or by the device's link. Collective. On a detached comm all are like this
  // one.
  void gather(const void *own, void *all, size_t bytes);
  Tracing &tracing() { return tracing_; }
  // Ends the group, and what waits for it. From any thread.
  void abort();
  // What is wrong with the group or the device, for lasp_context_get_async_error.
  std::optional<Error> async_error();

 private:
  void find_link();

  Comm &comm_;
  lasp_context_options options_;
  WaitPolicy wait_policy_;  // the device has a reference
  std::unique_ptr<Device> device_;
  Tracing tracing_;
  Link link_;
  const char *link_source_;
};

}  // namespace lasp
