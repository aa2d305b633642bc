// A CUDA device as one context uses it: an internal stream for exchanges, forked from and joined to the caller's by
// events, the transport to the other ranks, and a watch over what runs after the calls have returned.
#pragma once

#include <array>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/function_ref.h"
#include "base/status.h"
#include "cuda/device/cuda_call.h"
#include "cuda/device/device_trace.h"
#include "cuda/device/primary_context.h"
#include "cuda/transport/device_transport.h"
#include "exchange/exchange_watch.h"
#include "exchange/replay_watch.h"
#include "kernels/marks.h"

namespace lasp {

// Whether code compiled for `architectures` ("80-real 90a-real 80-virtual") runs on a device of this compute
// capability, 10 * major + minor.
bool architecture_served(std::string_view architectures, int32_t capability);

class CudaDevice {
 public:
  CudaDevice(Comm &comm, const lasp_context_options &options, const WaitPolicy &policy);
  ~CudaDevice();
  CudaDevice(const CudaDevice &) = delete;
  CudaDevice &operator=(const CudaDevice &) = delete;

  const std::string &description() const { return description_; }
  int32_t index() const { return index_; }
  bool has_memory(const void *data) const;
  void gather(const void *own, void *all, size_t bytes);
  // As Device::meet.
  void meet();
  // As Device::end_messages.
  void end_messages() noexcept { transport_->end_messages(); }
  // As Device::check. From any thread.
  void check();

  const cuda::PrimaryContext &primary() const { return *primary_; }
  Comm &comm() const { return comm_; }
  DeviceTransport &transport() const { return *transport_; }
  const Log &log() const { return wait_policy_.log; }
  bool profiled() const { return profiled_; }
  int32_t capability() const { return capability_; }
  int32_t multiprocessors() const { return multiprocessors_; }
  double copy_bytes_per_us() const { return copy_bytes_per_us_; }  // read and written, by clock and bus

  cudaStream_t exchange_stream() const { return stream_.get(); }
  cudaStream_t upload_stream() const { return upload_.get(); }  // for plans' tables alone
  // What every call has around it: the device, the state of the capture, and the memory of a failure.
  struct Call {
    const char *name;  // in a profiler
    lasp_stream stream;
    bool communicates;
  };
  void run(const Call &call, FunctionRef<void(bool capturing)> body);
  // Ends when work on the stream is done; throws where it cannot be, as check() does, and where the group is
  // broken.
  void await(cudaStream_t stream);
  // An operation of one group of messages: the exchange stream moves them after earlier work on `stream`, whose
  // later work finds what came. They are counted as traffic.
  struct Operation {
    lasp_stream stream;
    bool capturing;
    int32_t number, tag;
  };
  void enqueue(const Operation &operation, std::span<const Transfer> messages);

  // One group of messages on the exchange stream, of an operation; with a trace, recorded.
  void exchange(std::span<const Transfer> group, int32_t operation, int32_t tag);
  // The same by DeviceTransport::ring.
  void ring(const gpu::PeerRing &ring, std::span<const Transfer> group, int32_t tag);

  void start_trace(Trace &trace);
  DeviceTimes collect_times();
  // Where the device's times are recorded of the call that runs; null: they are not.
  DeviceTrace *tracing() const;

  // Around what an exchange enqueues. `peer` is whom it waits for first.
  void begin_watch(int32_t peer);
  void end_watch();
  // In their place while capturing: what the graph leaves whenever it is replayed.
  gpu::Mark begin_mark(int32_t peer) const { return {marks_.get(), false, peer}; }
  gpu::Mark end_mark() const { return {marks_.get(), true, -1}; }
  static void leave(const gpu::Mark &mark, cudaStream_t stream);
  // Remembers that the device has failed; the context is of no use any more.
  void remember(const Error &error);

 private:
  friend class ExchangeFork;
  struct FreeMarks {
    void operator()(gpu::ReplayMarks *marks) const { cudaFreeHost(marks); }
  };
  void identify(int32_t index);
  void make_marks();
  // Runs `enqueue`, and with a trace records the messages that it enqueues.
  void record(std::span<const Transfer> group, int32_t tag, FunctionRef<void()> enqueue);
  void look();
  [[noreturn]] void lose(const char *what, int32_t peer);

  Comm &comm_;
  const WaitPolicy &wait_policy_;
  bool profiled_, checks_values_;
  std::string device_text_, description_;
  bool met_ = false;
  int32_t index_ = 0, capability_ = 0, multiprocessors_ = 0;
  double copy_bytes_per_us_ = 0;
  std::unique_ptr<cuda::PrimaryContext> primary_;
  cuda::StreamOwner stream_, upload_;
  cuda::EventOwner forked_, joined_;
  std::unique_ptr<DeviceTransport> transport_;
  // A thread of the caller's may look while another is in a call: of the watch, the failure, and the moment at
  // which the exchange stream joins a capture, after which it may not be asked.
  std::mutex watching_;
  ExchangeWatch watch_;
  int32_t watched_ = -1;
  std::array<cuda::EventOwner, ExchangeWatch::kSlots> begins_, ends_;
  std::unique_ptr<gpu::ReplayMarks, FreeMarks> marks_;  // in host memory that kernels write; null in a group of one
  ReplayWatch replays_;
  std::optional<Error> failure_;
  std::unique_ptr<DeviceTrace> times_;  // since the first trace of this context
  bool capturing_ = false;              // the call that runs
};

// The exchange stream goes on from here on `stream`, and `stream` from join() on the exchange stream. Also where a
// pass fails in between: what is already enqueued still uses the caller's memory, which later work on `stream` may
// be given.
class ExchangeFork {
 public:
  ExchangeFork(CudaDevice &device, cudaStream_t stream);
  ~ExchangeFork();
  ExchangeFork(const ExchangeFork &) = delete;
  ExchangeFork &operator=(const ExchangeFork &) = delete;

  void again();  // the exchange stream goes on from here once more
  void join();

 private:
  CudaDevice &device_;
  cudaStream_t stream_;
  bool joined_ = false;
};

}  // namespace lasp
