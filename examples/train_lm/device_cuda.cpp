// A GPU's memory, its stream and its matrix products.
#ifdef TRAIN_LM_HAS_CUDA
#include "device_cuda.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <stdexcept>

#include "cuda.hpp"

namespace train_lm {
namespace {

Operand operand(Real x) { return {x.data, x.size == 2}; }
Operand operand(const float *x) { return {x, false}; }

std::string no_room(std::size_t bytes, std::size_t held) {
  char text[240];
  std::snprintf(
      text, sizeof text,
      "The GPU has no room for %.2f GiB more beside the %.2f GiB that this rank holds: take fewer tokens or a "
      "smaller model, or split the sequence over more GPUs.",
      static_cast<double>(bytes) / 0x1p30, static_cast<double>(held) / 0x1p30);
  return text;
}

}  // namespace

struct CudaDevice::Staged {
  void *data;
  std::size_t bytes;
  cudaEvent_t used;  // after it the memory is free again
};

CudaDevice::Stream::Stream(int device) {
  cuda::use(device);
  cuda::check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
}

CudaDevice::Stream::~Stream() { cudaStreamDestroy(stream_); }

CudaDevice::CudaDevice(const Place &place) : Device(place), stream_(place.index), cublas_(place.cublas, stream()) {
  cuda::check(cudaDeviceGetAttribute(&processors_, cudaDevAttrMultiProcessorCount, place.index),
              "cudaDeviceGetAttribute");
}

CudaDevice::~CudaDevice() {
  if (std::uncaught_exceptions() > 0) return;  // as in release
  for (const Staged &staged : staged_) {
    cudaEventDestroy(staged.used);
    cudaFreeHost(staged.data);
  }
}

bool CudaDevice::is_idle() const {
  const cudaError_t state = cudaStreamQuery(stream());
  if (state == cudaErrorNotReady) return false;
  cuda::check(state, "work on the stream");
  return true;
}

void *CudaDevice::allocate(std::size_t bytes) {
  void *data = nullptr;
  const cudaError_t made = cudaMalloc(&data, std::max<std::size_t>(bytes, 1));
  if (made == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // or a later call would report it
    throw std::runtime_error(no_room(bytes, meter().now()));
  }
  cuda::check(made, "cudaMalloc");
  meter().add(bytes);
  zero(data, bytes);
  return data;
}

void CudaDevice::release(void *data, std::size_t bytes) noexcept {
  meter().remove(bytes);
  // cudaFree waits for the device, and the device may be waiting for a rank that has failed. The process then ends.
  if (std::uncaught_exceptions() == 0) cudaFree(data);
}

void CudaDevice::zero(void *data, std::size_t bytes) {
  cuda::check(cudaMemsetAsync(data, 0, bytes, stream()), "cudaMemsetAsync");
}

// The runtime waits by itself where memory of the host is not page-locked, and none that is given here is.
void CudaDevice::copy(void *to, const void *from, std::size_t bytes) {
  cuda::check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream()), "cudaMemcpyAsync");
}

void CudaDevice::upload(void *to, const void *from, std::size_t bytes) {
  auto place = std::find_if(staged_.begin(), staged_.end(), [&](const Staged &staged) {
    return staged.bytes >= bytes && cudaEventQuery(staged.used) == cudaSuccess;
  });
  if (place == staged_.end()) {
    Staged made{nullptr, bytes, nullptr};
    cuda::check(cudaHostAlloc(&made.data, bytes, cudaHostAllocDefault), "cudaHostAlloc");
    cuda::check(cudaEventCreateWithFlags(&made.used, cudaEventDisableTiming), "cudaEventCreateWithFlags");
    place = staged_.insert(staged_.end(), made);
  }
  std::copy_n(static_cast<const std::byte *>(from), bytes, static_cast<std::byte *>(place->data));
  cuda::check(cudaMemcpyAsync(to, place->data, bytes, cudaMemcpyHostToDevice, stream()), "cudaMemcpyAsync");
  cuda::check(cudaEventRecord(place->used, stream()), "cudaEventRecord");
}

void *CudaDevice::scratch_of(std::size_t bytes) {
  if (scratch_.bytes() < bytes) {
    scratch_ = DeviceArray<std::byte>();  // first, so that both need not fit
    scratch_ = DeviceArray<std::byte>(*this, bytes);
  }
  return scratch_.data();
}

unsigned CudaDevice::blocks(std::int64_t wanted, int times) const {
  return static_cast<unsigned>(std::clamp<std::int64_t>(wanted, 1, std::int64_t{times} * processors_));
}

void CudaDevice::for_tiles(std::int64_t rows, const Body &body) {
  for (std::int64_t begin = 0; begin < rows; begin += tile()) body(0, begin, std::min(begin + tile(), rows));
}

void CudaDevice::multiply(std::int64_t m, int n, int k, Real a, Real b, float beta, Real c) {
  cublas_.multiply(m, n, k, operand(a), false, operand(b), false, beta, operand(c));
}

void CudaDevice::multiply(std::int64_t m, int n, int k, Real a, Real b, float *c) {
  cublas_.multiply(m, n, k, operand(a), false, operand(b), false, 0.0f, operand(c));
}

void CudaDevice::multiply_transposed(std::int64_t m, int n, int k, Real a, Real b, Real c) {
  cublas_.multiply(m, n, k, operand(a), false, operand(b), true, 0.0f, operand(c));
}

void CudaDevice::add_outer(std::int64_t rows, int m, int n, Real a, Real b, float *c) {
  cublas_.multiply(m, n, rows, operand(a), true, operand(b), false, 1.0f, operand(c));
}

}  // namespace train_lm
#endif
