// Messages between the device memories of one process: virtual ranks on one GPU, or several GPUs. The ranks'
// threads meet over the host transport to exchange notes of a few words - where the data is and which event says
// that it is ready - and the receiver enqueues the copy. Streams wait for events; no host waits for a device.
#include <algorithm>
#include <atomic>
#include <memory>
#include <vector>

#include "base/status.h"
#include "cuda/transport/device_transport.h"
#include "exchange/agreement.h"

namespace lasp {
namespace {

// From sender to receiver.
struct Note {
  void *data;
  uint64_t bytes;
  cudaEvent_t ready;
  int32_t device;
};
// An event that two ranks look at: the one that records it may be gone, with its context, before the other has told
// its stream to wait for it. Whoever lets go last destroys it.
class SharedEvent {
 public:
  SharedEvent() : event_(cuda::make_event()) {}
  cudaEvent_t get() const { return event_.get(); }
  void share() { users_.fetch_add(1, std::memory_order_relaxed); }
  void let_go() {
    if (users_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
  }

 private:
  ~SharedEvent() = default;
  cuda::EventOwner event_;
  std::atomic<int> users_{1};
};
struct LetGo {
  void operator()(SharedEvent *event) const { event->let_go(); }
};

// And back: passed once the copy is through, so that the sender may write the memory again. The sender lets go of
// it.
struct Receipt {
  SharedEvent *copied = nullptr;
};

class ThreadsDeviceTransport final : public DeviceTransport {
 public:
  ThreadsDeviceTransport(Comm &comm, int32_t device, const WaitPolicy &policy)
      : comm_(comm),
        device_(device),
        wait_policy_(policy),
        copies_from_(static_cast<size_t>(comm.nranks())),
        copied_(static_cast<size_t>(comm.nranks())) {}
  ~ThreadsDeviceTransport() override { forget(); }

  std::string description() const override { return "messages by copies inside the process"; }
  const char *capture_refusal() const override {
    return "the threads transport cannot be captured into a graph: its ranks meet on the host";
  }
  void gather(const void *own, void *all, size_t bytes, cudaStream_t) override {
    gather_by_messages(comm_, own, all, bytes, wait_policy_);
  }

  void reserve(std::span<const Transfer> messages, size_t groups) override;
  void exchange(std::span<const Transfer> group, cudaStream_t stream, int32_t operation, int32_t tag) override;
  void finish(cudaStream_t stream) override;

 private:
  void send_notes(std::span<const Transfer> group, cudaStream_t stream, int32_t operation, int32_t tag);
  void receive_notes(std::span<const Transfer> group, cudaStream_t stream, int32_t operation, int32_t tag);
  void copy(const Transfer &to, const Note &from, cudaStream_t stream);
  void forget() noexcept;

  Comm &comm_;
  int32_t device_;
  const WaitPolicy &wait_policy_;
  // Of the operation under way. The vectors of notes never grow beyond what reserve() gave them, since peers write
  // into them.
  Messages messages_{Messages::Count::kNo};
  std::vector<Note> notes_out_, notes_in_;
  std::vector<Receipt> receipts_in_, receipts_out_;
  size_t groups_ = 0;
  std::vector<size_t> copies_from_;  // by peer
  // Used again by each operation. A peer has told its stream to wait for an event before it sends the next note or
  // receipt, so what it waits for is never a later use.
  std::vector<cuda::EventOwner> ready_;                                   // by group
  std::vector<std::vector<std::unique_ptr<SharedEvent, LetGo>>> copied_;  // by peer, then number of the message
};

void ThreadsDeviceTransport::reserve(std::span<const Transfer> messages, size_t groups) {
  while (ready_.size() < groups) ready_.push_back(cuda::make_event());
  size_t sends = 0;
  for (const Transfer &message : messages) {
    if (message.is_send) {
      ++sends;
      continue;
    }
    const auto peer = static_cast<size_t>(message.peer);
    if (++copies_from_[peer] > copied_[peer].size()) copied_[peer].emplace_back(new SharedEvent);
  }
  std::fill(copies_from_.begin(), copies_from_.end(), 0);
  notes_out_.reserve(sends);
  receipts_in_.reserve(sends);
  notes_in_.reserve(messages.size() - sends);
  receipts_out_.reserve(messages.size() - sends);
  messages_.reserve(2 * messages.size());
}

void ThreadsDeviceTransport::exchange(std::span<const Transfer> group, cudaStream_t stream, int32_t operation,
                                      int32_t tag) {
  try {
    send_notes(group, stream, operation, tag);
    receive_notes(group, stream, operation, tag);
  } catch (...) {
    forget();
    throw;
  }
}

void ThreadsDeviceTransport::send_notes(std::span<const Transfer> group, cudaStream_t stream, int32_t operation,
                                        int32_t tag) {
  cudaEvent_t ready = nullptr;
  for (const Transfer &transfer : group) {
    if (!transfer.is_send) continue;
    if (ready == nullptr) {
      ready = ready_.at(groups_++).get();
      cuda::check(cudaEventRecord(ready, stream), "cudaEventRecord");
    }
    notes_out_.push_back({transfer.data, transfer.bytes, ready, device_});
    messages_.send(comm_, &notes_out_.back(), sizeof(Note), transfer.peer, tag);
    receipts_in_.push_back({});
    messages_.receive(comm_, &receipts_in_.back(), sizeof(Receipt), transfer.peer, tag_of(operation, kTagReceipt));
  }
}

void ThreadsDeviceTransport::receive_notes(std::span<const Transfer> group, cudaStream_t stream, int32_t operation,
                                           int32_t tag) {
  for (const Transfer &transfer : group) {
    if (transfer.is_send) continue;
    notes_in_.push_back({});
    const size_t index = messages_.receive(comm_, &notes_in_.back(), sizeof(Note), transfer.peer, tag);
    messages_.wait(comm_, index, wait_policy_, "waiting for a state");
    copy(transfer, notes_in_.back(), stream);
    const auto peer = static_cast<size_t>(transfer.peer);
    receipts_out_.push_back({copied_[peer].at(copies_from_[peer]++).get()});
    cuda::check(cudaEventRecord(receipts_out_.back().copied->get(), stream), "cudaEventRecord");
    receipts_out_.back().copied->share();
    messages_.send(comm_, &receipts_out_.back(), sizeof(Receipt), transfer.peer, tag_of(operation, kTagReceipt));
  }
}

void ThreadsDeviceTransport::copy(const Transfer &to, const Note &from, cudaStream_t stream) {
  if (from.bytes != to.bytes)
    throw fail(LASP_ERROR_INTERNAL, "rank %d sent %llu bytes, %llu were expected", to.peer,
               static_cast<unsigned long long>(from.bytes), static_cast<unsigned long long>(to.bytes));
  cuda::check(cudaStreamWaitEvent(stream, from.ready, 0), "cudaStreamWaitEvent");
  const cudaError_t error = from.device == device_
                                ? cudaMemcpyAsync(to.data, from.data, to.bytes, cudaMemcpyDeviceToDevice, stream)
                                : cudaMemcpyPeerAsync(to.data, device_, from.data, from.device, to.bytes, stream);
  cuda::check(error, "copying a state");
}

void ThreadsDeviceTransport::finish(cudaStream_t stream) {
  try {
    messages_.wait_all(comm_, wait_policy_, "waiting until a state was taken");
    for (const Receipt &receipt : receipts_in_)
      cuda::check(cudaStreamWaitEvent(stream, receipt.copied->get(), 0), "cudaStreamWaitEvent");
  } catch (...) {
    forget();
    throw;
  }
  forget();
}

void ThreadsDeviceTransport::forget() noexcept {
  messages_.cancel_all(comm_);
  for (const Receipt &receipt : receipts_in_)  // those that came
    if (receipt.copied != nullptr) receipt.copied->let_go();
  notes_out_.clear();
  notes_in_.clear();
  receipts_in_.clear();
  receipts_out_.clear();
  std::fill(copies_from_.begin(), copies_from_.end(), 0);
  groups_ = 0;
}

}  // namespace

std::unique_ptr<DeviceTransport> make_threads_device_transport(Comm &comm, int32_t device,
                                                               const WaitPolicy &policy) {
  return std::make_unique<ThreadsDeviceTransport>(comm, device, policy);
}

}  // namespace lasp
