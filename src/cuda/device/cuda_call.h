// CUDA's return codes as Errors, and small owners of what CUDA hands out.
#pragma once

#include <cuda_runtime_api.h>
#include <lasp/lasp.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>

namespace lasp::cuda {

// Throws LASP_ERROR_DEVICE, "<what>: cudaErrorInvalidValue (invalid argument)", unless `error` is cudaSuccess.
void check(cudaError_t error, const char *what);

// The same of what takes device memory where a context or a plan is made: LASP_ERROR_DEVICE_MEMORY where there is
// not enough of it. Nothing has been enqueued then, and everything lives on.
void check_allocation(cudaError_t error, const char *what);

// Whether work on the stream, or up to the event, is done. Throws where an earlier piece of work failed.
bool done(cudaStream_t stream);
bool done(cudaEvent_t event);

// False for the default stream, which cannot be captured.
bool is_capturing(cudaStream_t stream);

// While it lives this thread may ask for the state of streams although some stream is being captured.
class RelaxedCapture {
 public:
  RelaxedCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  ~RelaxedCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  RelaxedCapture(const RelaxedCapture &) = delete;
  RelaxedCapture &operator=(const RelaxedCapture &) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

// Neither destruction waits for work: CUDA frees them once they are idle.
struct DestroyStream {
  void operator()(cudaStream_t stream) const { cudaStreamDestroy(stream); }
};
struct DestroyEvent {
  void operator()(cudaEvent_t event) const { cudaEventDestroy(event); }
};
using StreamOwner = std::unique_ptr<std::remove_pointer_t<cudaStream_t>, DestroyStream>;
using EventOwner = std::unique_ptr<std::remove_pointer_t<cudaEvent_t>, DestroyEvent>;

// Non-blocking, of the highest priority: it carries little work, which others wait for.
StreamOwner make_stream();
// Without timing: for ordering only.
EventOwner make_event();

// A pair of buffers of one size, in host and device memory, through which small records go to other ranks.
class Staging {
 public:
  explicit Staging(size_t bytes);
  ~Staging();
  Staging(const Staging &) = delete;
  Staging &operator=(const Staging &) = delete;

  std::byte *host() const { return host_; }
  std::byte *device() const { return device_; }
  // Work that may never end still uses them. Freeing would wait for it, so they are given up.
  void give_up() { host_ = device_ = nullptr; }

 private:
  std::byte *host_ = nullptr, *device_ = nullptr;
};

}  // namespace lasp::cuda
