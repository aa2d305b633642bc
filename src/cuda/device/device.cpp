#include "cuda/device/device.h"

#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <new>
#include <thread>
#include <utility>

#include "cuda/device/profiler.h"

namespace lasp {
namespace {

// Of the bandwidth that a device's clock and bus say, what a copy reaches: 0.86 on an H200, 0.90 on an H100.
constexpr double kCopyShare = 0.88;

int32_t attribute(cudaDeviceAttr which, int32_t index) {
  int value = 0;
  cuda::check(cudaDeviceGetAttribute(&value, which, index), "cudaDeviceGetAttribute");
  return value;
}

// The CUDA version that the driver serves, 0 where there is none. The runtime of CUDA 13 says 0 of a driver of CUDA
// 11 too, so the driver itself is asked then.
int driver_version() {
  int version = 0;
  if (cudaDriverGetVersion(&version) == cudaSuccess && version > 0) return version;
  void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
  if (driver == nullptr) return 0;
  const auto ask = reinterpret_cast<int (*)(int *)>(dlsym(driver, "cuDriverGetVersion"));
  if (ask == nullptr || ask(&version) != 0) version = 0;
  dlclose(driver);
  return version;
}

}  // namespace

CudaDevice::CudaDevice(Comm &comm, const lasp_context_options &options, const WaitPolicy &policy)
    : comm_(comm),
      wait_policy_(policy),
      profiled_(options.profiler_ranges == 1),
      checks_values_(options.check_values == 1) {
  // -1: the comm's, else the current one. Where there is no driver identify() says so.
  int32_t index = options.device_index;
  if (index < 0) index = device_of(comm);
  if (index < 0 && cudaGetDevice(&index) != cudaSuccess) cudaGetLastError(), index = 0;
  require_reach(comm, index);
  identify(index);
  primary_ = std::make_unique<cuda::PrimaryContext>(index);
  const cuda::Current current(*primary_);
  const cuda::RelaxedCapture relaxed;
  stream_ = cuda::make_stream();
  upload_ = cuda::make_stream();
  forked_ = cuda::make_event();
  joined_ = cuda::make_event();
  transport_ = make_device_transport(comm, index, policy);
  description_ = device_text_ + ", " + transport_->description();
  if (comm.nranks() == 1) return;
  for (auto *events : {&begins_, &ends_})
    for (cuda::EventOwner &event : *events) event = cuda::make_event();
  make_marks();
}

void CudaDevice::make_marks() {
  cuda::check_allocation(static_cast<cudaError_t>(gpu::load_marks()), "loading kernels");
  void *memory = nullptr;
  cuda::check(cudaHostAlloc(&memory, sizeof(gpu::ReplayMarks), cudaHostAllocMapped), "cudaHostAlloc");
  marks_.reset(new (memory) gpu::ReplayMarks);
}

CudaDevice::~CudaDevice() {
  const cuda::Current current(*primary_);
  const cuda::RelaxedCapture relaxed;
  transport_.reset();
  times_.reset();
  for (auto *events : {&begins_, &ends_})
    for (cuda::EventOwner &event : *events) event.reset();
  marks_.reset();
  forked_.reset();
  joined_.reset();
  upload_.reset();
  stream_.reset();
}

void CudaDevice::identify(int32_t index) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) cudaGetLastError();
  if (error == cudaErrorInsufficientDriver) {
    const int version = driver_version();
    throw version > 0
        ? fail(LASP_ERROR_NO_DEVICE,
               "device: the NVIDIA driver serves CUDA %d.%d, which is older than this build's CUDA %d.%d",
               version / 1000, version / 10 % 100, CUDART_VERSION / 1000, CUDART_VERSION / 10 % 100)
        : fail(LASP_ERROR_NO_DEVICE, "device = LASP_DEVICE_CUDA: no NVIDIA driver was found on this machine");
  }
  if (error == cudaErrorNoDevice || (error == cudaSuccess && count == 0))
    throw fail(LASP_ERROR_NO_DEVICE, "device = LASP_DEVICE_CUDA: the NVIDIA driver finds no GPU for this process");
  if (error != cudaSuccess)
    throw fail(LASP_ERROR_NO_DEVICE, "device = LASP_DEVICE_CUDA: %s (%s)", cudaGetErrorName(error),
               cudaGetErrorString(error));
  if (index >= count)
    throw fail(LASP_ERROR_NO_DEVICE, "device_index = %d: this process has %d CUDA device(s)", index, count);
  index_ = index;
  const int32_t major = attribute(cudaDevAttrComputeCapabilityMajor, index);
  const int32_t minor = attribute(cudaDevAttrComputeCapabilityMinor, index);
  capability_ = 10 * major + minor;
  multiprocessors_ = attribute(cudaDevAttrMultiProcessorCount, index);
  // Two transfers in a clock of so many kHz, over a bus of so many bits.
  copy_bytes_per_us_ = kCopyShare * 2e-3 * attribute(cudaDevAttrMemoryClockRate, index) *
                       attribute(cudaDevAttrGlobalMemoryBusWidth, index) / 8;
  cudaDeviceProp properties{};
  cuda::check(cudaGetDeviceProperties(&properties, index), "cudaGetDeviceProperties");
  device_text_ = "CUDA device " + std::to_string(index) + ", " + properties.name + ", compute capability " +
                 std::to_string(major) + "." + std::to_string(minor) + ", " + std::to_string(multiprocessors_) +
                 " multiprocessors";
  if (!architecture_served(LASP_CUDA_ARCHITECTURES, capability_))
    throw fail(LASP_ERROR_NO_DEVICE, "device_index = %d: compute capability %d.%d (%s) is not compiled in, only %s",
               index, major, minor, properties.name, LASP_CUDA_ARCHITECTURES);
}

// Managed memory counts: a pass reads it when it runs. What the driver does not know is the host's.
bool CudaDevice::has_memory(const void *data) const {
  cudaPointerAttributes attributes;
  if (cudaPointerGetAttributes(&attributes, data) != cudaSuccess) {
    cudaGetLastError();
    return false;
  }
  return attributes.type == cudaMemoryTypeDevice || attributes.type == cudaMemoryTypeManaged;
}

void CudaDevice::gather(const void *own, void *all, size_t bytes) {
  const cuda::Current current(*primary_);
  const cuda::RelaxedCapture relaxed;
  transport_->gather(own, all, bytes, stream_.get());
}

void CudaDevice::meet() {
  if (std::exchange(met_, true)) return;
  const cuda::Current current(*primary_);
  const cuda::RelaxedCapture relaxed;
  transport_->meet(stream_.get());
  description_ = device_text_ + ", " + transport_->description();
}

void CudaDevice::run(const Call &call, FunctionRef<void(bool capturing)> body) {
  const cuda::Current current(*primary_);
  const bool capturing = cuda::is_capturing(call.stream);
  const char *refusal = transport_->capture_refusal();
  if (capturing && call.communicates && refusal != nullptr)
    throw fail(LASP_ERROR_UNSUPPORTED, "stream: %s", refusal);
  if (capturing && checks_values_)
    throw fail(LASP_ERROR_UNSUPPORTED,
               "stream: it is being captured, and with check_values = 1 each call waits for its own work");
  if (!capturing) check();
  capturing_ = capturing;
  if (capturing && comm_.trace() != nullptr) comm_.trace()->set_captured();
  const cuda::Range range(profiled_ ? call.name : nullptr);
  const DeviceSpan span(tracing(), call.name, call.stream);
  try {
    body(capturing);
  } catch (const Error &error) {
    if (error.status == LASP_ERROR_DEVICE) remember(error);
    throw;
  }
}

void CudaDevice::await(cudaStream_t stream) {
  const cuda::Current current(*primary_);
  while (!cuda::done(stream)) {
    comm_.require_usable();
    check();
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

void CudaDevice::enqueue(const Operation &operation, std::span<const Transfer> messages) {
  for (const Transfer &message : messages)
    message.is_send ? comm_.count_sent(message.bytes) : comm_.count_received(message.bytes);
  const auto received =
      std::find_if(messages.begin(), messages.end(), [](const Transfer &message) { return !message.is_send; });
  const cuda::Range range(profiled_ ? "lasp exchange" : nullptr);
  ExchangeFork fork(*this, operation.stream);
  const int32_t peer = received != messages.end() ? received->peer : messages.front().peer;
  operation.capturing ? leave(begin_mark(peer), exchange_stream()) : begin_watch(peer);
  exchange(messages, operation.number, operation.tag);
  transport_->finish(exchange_stream());
  operation.capturing ? leave(end_mark(), exchange_stream()) : end_watch();
  fork.join();
}

void CudaDevice::exchange(std::span<const Transfer> group, int32_t operation, int32_t tag) {
  record(group, tag, [&] { transport_->exchange(group, exchange_stream(), operation, tag); });
}

void CudaDevice::ring(const gpu::PeerRing &ring, std::span<const Transfer> group, int32_t tag) {
  record(group, tag, [&] { transport_->ring(ring, exchange_stream()); });
}

void CudaDevice::record(std::span<const Transfer> group, int32_t tag, FunctionRef<void()> enqueue) {
  DeviceTrace *const times = tracing();
  TraceRecord record{.kind = Traced::kMessages, .name = "messages", .operation = comm_.operations(), .tag = tag};
  if (times != nullptr) record.group = comm_.trace()->next_group();
  {
    const DeviceSpan span(times, record, exchange_stream());
    enqueue();
    if (!span.recorded()) record.group = 0;
  }
  if (times == nullptr) return;
  record.begin_ns = record.end_ns = Trace::now();
  for (const Transfer &message : group) {
    record.kind = message.is_send ? Traced::kSend : Traced::kReceive;
    record.peer = message.peer;
    record.bytes = message.bytes;
    comm_.trace()->add(record);
  }
}

void CudaDevice::start_trace(Trace &trace) {
  const cuda::Current current(*primary_);
  const cuda::RelaxedCapture relaxed;
  times_.reset();
  times_ = std::make_unique<DeviceTrace>(trace, upload_.get(), exchange_stream());
}

DeviceTimes CudaDevice::collect_times() {
  if (!times_) return {};
  const cuda::Current current(*primary_);
  const cuda::RelaxedCapture relaxed;
  return times_->collect();
}

// The comm's trace may be another context's.
DeviceTrace *CudaDevice::tracing() const {
  return !capturing_ && times_ && &times_->trace() == comm_.trace() ? times_.get() : nullptr;
}

ExchangeFork::ExchangeFork(CudaDevice &device, cudaStream_t stream) : device_(device), stream_(stream) { again(); }

ExchangeFork::~ExchangeFork() {
  if (joined_) return;
  if (cudaEventRecord(device_.joined_.get(), device_.stream_.get()) != cudaSuccess ||
      cudaStreamWaitEvent(stream_, device_.joined_.get(), 0) != cudaSuccess)
    cudaGetLastError();  // the pass has failed already, and says why
}

void ExchangeFork::again() {
  const std::lock_guard lock(device_.watching_);
  cuda::check(cudaEventRecord(device_.forked_.get(), stream_), "cudaEventRecord");
  cuda::check(cudaStreamWaitEvent(device_.stream_.get(), device_.forked_.get(), 0), "cudaStreamWaitEvent");
}

void ExchangeFork::join() {
  cuda::check(cudaEventRecord(device_.joined_.get(), device_.stream_.get()), "cudaEventRecord");
  cuda::check(cudaStreamWaitEvent(stream_, device_.joined_.get(), 0), "cudaStreamWaitEvent");
  joined_ = true;
}

// The device has the host's addresses.
void CudaDevice::leave(const gpu::Mark &mark, cudaStream_t stream) {
  cuda::check(static_cast<cudaError_t>(gpu::launch_mark(mark, stream)), "marking an exchange");
}

void CudaDevice::begin_watch(int32_t peer) {
  const std::lock_guard lock(watching_);
  watched_ = watch_.open(peer);
  if (watched_ < 0) return;
  const cudaError_t error = cudaEventRecord(begins_[static_cast<size_t>(watched_)].get(), stream_.get());
  if (error != cudaSuccess) watch_.drop();
  cuda::check(error, "cudaEventRecord");
}

void CudaDevice::end_watch() {
  const std::lock_guard lock(watching_);
  if (watched_ < 0) return;
  const cudaError_t error = cudaEventRecord(ends_[static_cast<size_t>(watched_)].get(), stream_.get());
  watched_ = -1;
  if (error != cudaSuccess) watch_.drop();
  cuda::check(error, "cudaEventRecord");
}

void CudaDevice::remember(const Error &error) {
  const std::lock_guard lock(watching_);
  if (!failure_) failure_ = error;
}

void CudaDevice::check() {
  const std::lock_guard lock(watching_);
  if (failure_) throw *failure_;
  const cuda::Current current(*primary_);
  const cuda::RelaxedCapture relaxed;
  try {
    if (!cuda::is_capturing(stream_.get())) look();
  } catch (const Error &error) {
    if (error.status == LASP_ERROR_DEVICE) failure_ = error;
    throw;
  }
}

void CudaDevice::look() {
  cuda::done(stream_.get());  // throws when any earlier work on the device has failed
  transport_->check();
  const auto passed = [&](int32_t slot, bool end) {
    if (end && slot == watched_) return false;  // its mark is still to be made, by a call in progress
    const auto &events = end ? ends_ : begins_;
    return cuda::done(events[static_cast<size_t>(slot)].get());
  };
  const auto now = ExchangeWatch::Clock::now();
  const std::chrono::milliseconds limit(wait_policy_.limit_ms);
  if (const auto lost = watch_.poll(now, limit, passed)) lose("an exchange", *lost);
  if (!marks_) return;
  const auto read = [](auto &mark) { return std::atomic_ref(mark).load(std::memory_order_acquire); };
  const uint32_t begun = read(marks_->begun), ended = read(marks_->ended);
  if (replays_.poll(now, limit, begun, ended)) lose("an exchange of a captured graph", read(marks_->peer));
}

void CudaDevice::lose(const char *what, int32_t peer) {
  end_messages();
  comm_.lose(fail(LASP_ERROR_PEER_LOST,
                  "%s did not end within the time limit of %lld ms (rank %d, %s transport, was exchanging states, "
                  "first with rank %d)",
                  what, static_cast<long long>(wait_policy_.limit_ms), comm_.rank(), comm_.name().c_str(), peer),
             peer);
}

}  // namespace lasp
