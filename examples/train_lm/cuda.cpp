// The CUDA runtime, every call checked.
#include "cuda.hpp"

#include <cuda_runtime_api.h>

#include <exception>
#include <stdexcept>

namespace train_lm::cuda {
namespace {

void check(cudaError_t error, const char *call) {
  if (error == cudaSuccess) return;
  throw std::runtime_error(std::string(call) + ": " + cudaGetErrorName(error) + ": " + cudaGetErrorString(error));
}

}  // namespace

int device_count() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) return 0;  // liblasp says why, when a context is asked for
  return count;
}

void use(int device) { check(cudaSetDevice(device), "cudaSetDevice"); }

std::string name(int device) {
  cudaDeviceProp properties;
  check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
  return properties.name;
}

lasp_stream make_stream() {
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  return stream;
}

void destroy_stream(lasp_stream stream) noexcept { cudaStreamDestroy(stream); }

bool is_idle(lasp_stream stream) {
  const cudaError_t state = cudaStreamQuery(stream);
  if (state == cudaErrorNotReady) return false;
  check(state, "work on the stream");
  return true;
}

void *allocate(std::size_t bytes) {
  void *data = nullptr;
  check(cudaMalloc(&data, bytes), "cudaMalloc");
  return data;
}

void release(void *data) noexcept {
  // cudaFree waits for the device, and the device may be waiting for a rank that has failed. The process then ends.
  if (std::uncaught_exceptions() == 0) cudaFree(data);
}

void copy(void *to, const void *from, std::size_t bytes, lasp_stream stream) {
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream), "cudaMemcpyAsync");
}

}  // namespace train_lm::cuda
