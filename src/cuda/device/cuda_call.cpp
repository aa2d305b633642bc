#include "cuda/device/cuda_call.h"

#include "base/status.h"

namespace lasp::cuda {
namespace {

bool is_done(cudaError_t state, const char *what) {
  if (state == cudaErrorNotReady) {
    cudaGetLastError();  // "not ready" is remembered like an error: the next launch must not be blamed for it
    return false;
  }
  check(state, what);
  return true;
}

}  // namespace

void check(cudaError_t error, const char *what) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // it has been said; the runtime linked into this library is nobody else's
  throw fail(LASP_ERROR_DEVICE, "%s: %s (%s)", what, cudaGetErrorName(error), cudaGetErrorString(error));
}

void check_allocation(cudaError_t error, const char *what) {
  if (error != cudaErrorMemoryAllocation) return check(error, what);
  cudaGetLastError();
  throw fail(LASP_ERROR_DEVICE_MEMORY, "%s: the GPU has not enough free memory", what);
}

bool done(cudaStream_t stream) { return is_done(cudaStreamQuery(stream), "the GPU failed in earlier work"); }
bool done(cudaEvent_t event) { return is_done(cudaEventQuery(event), "the GPU failed in earlier work"); }

bool is_capturing(cudaStream_t stream) {
  if (stream == nullptr || stream == cudaStreamLegacy) return false;
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check(cudaStreamIsCapturing(stream, &status), "stream");
  return status != cudaStreamCaptureStatusNone;
}

StreamOwner make_stream() {
  int least = 0, greatest = 0;
  check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "cudaDeviceGetStreamPriorityRange");
  cudaStream_t stream = nullptr;
  check_allocation(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, greatest),
                   "cudaStreamCreateWithPriority");
  return StreamOwner(stream);
}

EventOwner make_event() {
  cudaEvent_t event = nullptr;
  check_allocation(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreateWithFlags");
  return EventOwner(event);
}

Staging::Staging(size_t bytes) {
  void *host = nullptr, *device = nullptr;
  check(cudaHostAlloc(&host, bytes, cudaHostAllocDefault), "cudaHostAlloc");
  host_ = static_cast<std::byte *>(host);
  const cudaError_t error = cudaMalloc(&device, bytes);
  if (error != cudaSuccess) {
    cudaFreeHost(host);
    check_allocation(error, "cudaMalloc");
  }
  device_ = static_cast<std::byte *>(device);
}

Staging::~Staging() {
  if (host_ != nullptr) cudaFreeHost(host_);
  if (device_ != nullptr) cudaFree(device_);
}

}  // namespace lasp::cuda
