#include "device_link.h"

#include <chrono>
#include <cstring>
#include <thread>

#include "nccl_library.h"
#include "status.h"

namespace lasp {
namespace {

class SelfLink final : public DeviceLink {
 public:
  std::string description() const override { return "no other rank"; }
  void exchange(std::span<const Transfer>, cudaStream_t, int32_t, int32_t) override {
    throw fail(LASP_ERROR_INTERNAL, "a message in a group of one");
  }
  void gather(const void *own, void *all, size_t bytes, cudaStream_t) override { std::memcpy(all, own, bytes); }
};

}  // namespace

std::unique_ptr<DeviceLink> make_self_link() { return std::make_unique<SelfLink>(); }

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

std::unique_ptr<DeviceLink> make_device_link(Comm &comm, int32_t device, int64_t time_limit_ms) {
  if (comm.nranks() == 1) return make_self_link();
  switch (comm.kind()) {
    case CommKind::kThreads: return make_threads_link(comm, device, time_limit_ms);
    case CommKind::kNccl: return make_nccl_link(comm, time_limit_ms);
    default: return make_custom_link(comm, time_limit_ms);
  }
}

void wait_for_stream(Comm &comm, cudaStream_t stream, int64_t time_limit_ms, const char *what, DeviceLink &link) {
  using Clock = std::chrono::steady_clock;
  const cuda::RelaxedCapture relaxed;
  const Clock::time_point begin = Clock::now();
  while (!cuda::done(stream)) {
    link.check();
    if (time_limit_ms >= 0 && Clock::now() - begin > std::chrono::milliseconds(time_limit_ms))
      comm.lose(fail(LASP_ERROR_PEER_LOST,
                     "a rank did not come within the time limit of %lld ms (rank %d, %s transport, was %s)",
                     static_cast<long long>(time_limit_ms), comm.rank(), comm.name().c_str(), what),
                -1);
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

}  // namespace lasp
