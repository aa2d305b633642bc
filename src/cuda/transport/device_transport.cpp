#include "cuda/transport/device_transport.h"

#include <chrono>
#include <cstring>
#include <thread>

#include "base/status.h"
#include "cuda/transport/nccl_library.h"

namespace lasp {
namespace {

class SelfDeviceTransport final : public DeviceTransport {
 public:
  explicit SelfDeviceTransport(const char *description) : description_(description) {}
  std::string description() const override { return description_; }
  void exchange(std::span<const Transfer>, cudaStream_t, int32_t, int32_t) override {
    throw fail(LASP_ERROR_INTERNAL, "a message where nobody is talked to");
  }
  void gather(const void *own, void *all, size_t bytes, cudaStream_t) override { std::memcpy(all, own, bytes); }

 private:
  const char *description_;
};

}  // namespace

std::unique_ptr<DeviceTransport> make_self_device_transport(const char *description) {
  return std::make_unique<SelfDeviceTransport>(description);
}

int32_t device_of(const Comm &comm) { return comm.kind() == CommKind::kNccl ? comm.nccl()->device : -1; }

void require_reach(const Comm &comm, int32_t device) {
  if (comm.kind() == CommKind::kNccl && comm.nccl()->device != device)
    throw fail(LASP_ERROR_INVALID_ARGUMENT, "device_index = %d: the NCCL communicator is on CUDA device %d", device,
               comm.nccl()->device);
  if (comm.nranks() > 1 && comm.kind() == CommKind::kCustom && comm.memory() != LASP_DEVICE_CUDA)
    throw fail(LASP_ERROR_UNSUPPORTED,
               "device = LASP_DEVICE_CUDA: the %s transport carries host memory only; use NCCL, threads, or a "
               "transport with memory = LASP_DEVICE_CUDA",
               comm.name().c_str());
}

std::unique_ptr<DeviceTransport> make_device_transport(Comm &comm, int32_t device, const WaitPolicy &policy) {
  if (comm.nranks() == 1) return make_self_device_transport("no other rank");
  if (comm.detached()) return make_self_device_transport("no transport");
  switch (comm.kind()) {
    case CommKind::kThreads: return make_threads_device_transport(comm, device, policy);
    case CommKind::kNccl: return make_nccl_device_transport(comm, policy);
    default: return make_custom_device_transport(comm, policy);
  }
}

void wait_for_stream(Comm &comm, cudaStream_t stream, const WaitPolicy &policy, const char *what,
                     DeviceTransport &transport) {
  const cuda::RelaxedCapture relaxed;
  const TraceSpan span(comm.trace(), Traced::kWait, what);
  for (Wait wait(comm, policy, what, -1); !cuda::done(stream);) {
    transport.check();
    wait.poll();
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

}  // namespace lasp
