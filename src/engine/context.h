// A comm, a device and settings. Owns the CPU threads, and what is the context's of a GPU.
#pragma once

#include <lasp/lasp.h>

#include <cstdint>
#include <memory>

#include "base/thread_pool.h"
#include "comm/comm.h"
#include "comm/wait.h"
#include "engine/device.h"
#include "exchange/cost_model.h"

namespace lasp {

class Context {
 public:
  // Throws Error for options that are wrong or that this build cannot serve.
  Context(Comm &comm, const lasp_context_options &options);

  Comm &comm() { return comm_; }
  ThreadPool &pool() { return pool_; }
  Device *device() { return device_.get(); }  // null: the CPU
  int32_t device_kind() const { return options_.device; }
  const WaitPolicy &wait_policy() const { return wait_policy_; }
  const Log &log() const { return wait_policy_.log; }
  bool verify_messages() const { return options_.verify_messages != 0; }
  // What the caller says of the link, else the transport, else an assumption that the plan's description owns up
  // to.
  Link link() const { return link_; }
  const char *link_source() const { return link_source_; }
  // Every rank's record, by host messages or by the device's link. Collective.
  void gather(const void *own, void *all, size_t bytes);
  // Throws when the device has failed since the last call. Never blocks.
  void check_device();
  // What is wrong with the group or the device, for lasp_context_get_async_error.
  lasp_status async_status();

 private:
  Comm &comm_;
  lasp_context_options options_;
  WaitPolicy wait_policy_;  // the device has a reference
  ThreadPool pool_;
  std::unique_ptr<Device> device_;
  Link link_;
  const char *link_source_;
};

}  // namespace lasp
