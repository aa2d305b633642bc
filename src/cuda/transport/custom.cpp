// Messages by a caller's functions that take device memory and order their work on the stream they are given.
#include <cstring>

#include "base/status.h"
#include "cuda/device/cuda_call.h"
#include "cuda/transport/device_transport.h"
#include "exchange/agreement.h"

namespace lasp {
namespace {

class CustomDeviceTransport final : public DeviceTransport {
 public:
  CustomDeviceTransport(Comm &comm, const WaitPolicy &policy)
      : comm_(comm),
        wait_policy_(policy),
        capture_refusal_("the " + comm.name() +
                         " transport cannot be captured into a graph: its functions are called by the host"),
        staging_(kMostRecordBytes * (static_cast<size_t>(comm.nranks()) + 1)) {
    group_.reserve(2 * static_cast<size_t>(comm.nranks()));
  }
  ~CustomDeviceTransport() override {
    if (comm_.async_status() != LASP_OK) staging_.give_up();
  }

  std::string description() const override { return "messages by the " + comm_.name() + " transport"; }
  const char *capture_refusal() const override { return capture_refusal_.c_str(); }
  void reserve(std::span<const Transfer> messages, size_t) override { messages_.reserve(messages.size()); }

  void exchange(std::span<const Transfer> group, cudaStream_t stream, int32_t, int32_t tag) override {
    try {
      for (const Transfer &transfer : group) {
        if (transfer.is_send) {
          messages_.send(comm_, transfer.data, transfer.bytes, transfer.peer, tag, stream);
        } else {
          messages_.receive(comm_, transfer.data, transfer.bytes, transfer.peer, tag, stream);
        }
      }
      messages_.wait_all(comm_, wait_policy_, "exchanging states");
    } catch (...) {
      messages_.cancel_all(comm_);
      throw;
    }
  }

  void gather(const void *own, void *all, size_t bytes, cudaStream_t stream) override {
    const auto nranks = static_cast<size_t>(comm_.nranks());
    std::byte *const host = staging_.host(), *const device = staging_.device();
    std::memcpy(host, own, bytes);
    cuda::check(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, stream), "copying a record");
    group_.clear();
    for (int32_t peer = 0; peer < comm_.nranks(); ++peer) {
      if (peer == comm_.rank()) continue;
      group_.push_back({false, peer, device + (static_cast<size_t>(peer) + 1) * bytes, bytes});
      group_.push_back({true, peer, device, bytes});
    }
    messages_.reserve(group_.size());
    exchange(group_, stream, 0, kAgreementTag);
    cuda::check(cudaMemcpyAsync(host + bytes, device + bytes, nranks * bytes, cudaMemcpyDeviceToHost, stream),
                "copying records");
    wait_for_stream(comm_, stream, wait_policy_, "comparing problems", *this);
    std::memcpy(all, host + bytes, nranks * bytes);
    std::memcpy(static_cast<std::byte *>(all) + static_cast<size_t>(comm_.rank()) * bytes, own, bytes);
  }

 private:
  Comm &comm_;
  const WaitPolicy &wait_policy_;
  std::string capture_refusal_;
  cuda::Staging staging_;
  Messages messages_{Messages::Count::kNo};
  std::vector<Transfer> group_;
};

}  // namespace

std::unique_ptr<DeviceTransport> make_custom_device_transport(Comm &comm, const WaitPolicy &policy) {
  return std::make_unique<CustomDeviceTransport>(comm, policy);
}

}  // namespace lasp
