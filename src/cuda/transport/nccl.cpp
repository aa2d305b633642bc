// Messages over a borrowed NCCL communicator, blocking or not. The communicator is never aborted nor destroyed
// here. Where each GPU of the group can write the memory of each other, NCCL brings the ranks together, and
// messages go without it.
#include <atomic>
#include <cstdio>
#include <cstring>
#include <thread>

#include "base/status.h"
#include "cuda/device/cuda_call.h"
#include "cuda/transport/device_transport.h"
#include "cuda/transport/nccl_library.h"
#include "cuda/transport/peer_links.h"
#include "exchange/agreement.h"

namespace lasp {
namespace {

class NcclDeviceTransport final : public DeviceTransport {
 public:
  NcclDeviceTransport(Comm &comm, const WaitPolicy &policy)
      : comm_(comm),
        nccl_(*comm.nccl()),
        wait_policy_(policy),
        staging_(kMostRecordBytes * (static_cast<size_t>(comm.nranks()) + 1)) {}
  ~NcclDeviceTransport() override {
    if (comm_.async_status() == LASP_OK) return;
    staging_.give_up();
    end_messages();
  }

  std::string description() const override {
    const std::string nccl = "NCCL " + nccl_version_text(nccl_.library.version) + ", " + nccl_.library.where;
    return links_ ? "messages by peer memory, ranks met by " + nccl : "messages by " + nccl;
  }

  void require_room(size_t messages) const override {
    if (links_) PeerLinks::require_room(messages);
  }
  void exchange(std::span<const Transfer> group, cudaStream_t stream, int32_t, int32_t) override {
    links_ ? links_->exchange(group, stream) : run_group(group, stream, nullptr);
  }
  bool sends_at_once(std::span<const Transfer> messages) const override {
    return links_ && links_->sends_at_once(messages);
  }
  bool by_peer_memory() const override { return links_ != nullptr; }
  void ring(const gpu::PeerRing &ring, cudaStream_t stream) override { links_->ring(ring, stream); }
  void meet(cudaStream_t stream) override;
  void connect(std::span<const Transfer> group, cudaStream_t stream) override {
    if (links_) return;
    run_group(group, stream, staging_.device());
    wait_for_stream(comm_, stream, wait_policy_, "connecting", *this);
  }
  void gather(const void *own, void *all, size_t bytes, cudaStream_t stream) override;
  void check() override;
  void end_messages() noexcept override {
    if (PeerLinks *const links = shown_.load()) links->end();
  }

 private:
  static constexpr size_t kProbeBytes = 4;

  // With `probe`, each message is a few bytes of this memory instead of its own.
  void run_group(std::span<const Transfer> group, cudaStream_t stream, std::byte *probe);
  // Ends a call that answered ncclInProgress, as those on non-blocking communicators do.
  void settle(int result, const char *name);
  [[noreturn]] void failed(int result, const char *what);

  Comm &comm_;
  const NcclGroup &nccl_;
  const WaitPolicy &wait_policy_;
  cuda::Staging staging_;
  std::unique_ptr<PeerLinks> links_;         // null: messages go by NCCL
  std::atomic<PeerLinks *> shown_{nullptr};  // the same, to other threads
};

void NcclDeviceTransport::meet(cudaStream_t stream) {
  std::string why_not;
  links_ = PeerLinks::make(
      comm_, nccl_.device, stream,
      [&](const void *own, void *all, size_t bytes) { gather(own, all, bytes, stream); }, why_not);
  shown_ = links_.get();
  if (!links_ && wait_policy_.log.wants(LASP_LOG_INFO))
    wait_policy_.log.write(LASP_LOG_INFO, "messages go by NCCL, not by peer memory: %s", why_not.c_str());
}

void NcclDeviceTransport::run_group(std::span<const Transfer> group, cudaStream_t stream, std::byte *probe) {
  if (group.empty()) return;
  const NcclLibrary &f = nccl_.library;
  settle(f.group_start(), "ncclGroupStart");
  int result = kNcclSuccess;
  const char *what = "";
  for (const Transfer &transfer : group) {
    std::byte *data = static_cast<std::byte *>(transfer.data);
    size_t bytes = transfer.bytes;
    if (probe != nullptr) {
      bytes = kProbeBytes;
      data = probe + (transfer.is_send ? 0 : (static_cast<size_t>(transfer.peer) + 1) * kProbeBytes);
    }
    what = transfer.is_send ? "ncclSend" : "ncclRecv";
    result = transfer.is_send ? f.send(data, bytes, kNcclBytes, transfer.peer, nccl_.comm, stream)
                              : f.recv(data, bytes, kNcclBytes, transfer.peer, nccl_.comm, stream);
    if (result != kNcclSuccess && result != kNcclInProgress) break;
  }
  const int ended = f.group_end();  // also after a failure: a group left open would swallow the caller's own calls
  if (result != kNcclSuccess && result != kNcclInProgress) failed(result, what);
  settle(ended, "ncclGroupEnd");
}

void NcclDeviceTransport::settle(int result, const char *name) {
  if (result == kNcclInProgress) {
    char what[48];
    std::snprintf(what, sizeof what, "inside %s", name);
    const TraceSpan span(comm_.trace(), Traced::kWait, name);
    for (Wait wait(comm_, wait_policy_, what, -1); result == kNcclInProgress; std::this_thread::yield()) {
      wait.poll();
      const int asked = nccl_.library.comm_get_async_error(nccl_.comm, &result);
      if (asked != kNcclSuccess) failed(asked, "ncclCommGetAsyncError");
    }
  }
  if (result != kNcclSuccess) failed(result, name);
}

void NcclDeviceTransport::failed(int result, const char *what) {
  end_messages();
  const char *text = nccl_.library.get_error_string(result);
  const lasp_status status = result == kNcclRemoteError ? LASP_ERROR_PEER_LOST : LASP_ERROR_TRANSPORT;
  comm_.lose(fail(status, "%s on rank %d answered %d: %s", what, comm_.rank(), result, text != nullptr ? text : ""),
             -1);
}

void NcclDeviceTransport::check() {
  int state = kNcclSuccess;
  const int asked = nccl_.library.comm_get_async_error(nccl_.comm, &state);
  if (asked != kNcclSuccess) failed(asked, "ncclCommGetAsyncError");
  if (state != kNcclSuccess && state != kNcclInProgress) failed(state, "the NCCL communicator");
}

void NcclDeviceTransport::gather(const void *own, void *all, size_t bytes, cudaStream_t stream) {
  const size_t total = static_cast<size_t>(comm_.nranks()) * bytes;
  std::byte *const host = staging_.host(), *const device = staging_.device();
  std::memcpy(host, own, bytes);
  cuda::check(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, stream), "copying a record");
  settle(nccl_.library.all_gather(device, device + kMostRecordBytes, bytes, kNcclBytes, nccl_.comm, stream),
         "ncclAllGather");
  cuda::check(cudaMemcpyAsync(host, device + kMostRecordBytes, total, cudaMemcpyDeviceToHost, stream),
              "copying records");
  wait_for_stream(comm_, stream, wait_policy_, "comparing problems", *this);
  std::memcpy(all, host, total);
}

}  // namespace

std::unique_ptr<DeviceTransport> make_nccl_device_transport(Comm &comm, const WaitPolicy &policy) {
  return std::make_unique<NcclDeviceTransport>(comm, policy);
}

}  // namespace lasp
