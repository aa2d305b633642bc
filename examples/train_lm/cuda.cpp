// The CUDA runtime, every call checked.
#ifdef TRAIN_LM_HAS_CUDA
#include "cuda.hpp"

#include <cuda_runtime_api.h>

#include <stdexcept>

namespace train_lm::cuda {

void check(int error, const char *call) {
  const cudaError_t code = static_cast<cudaError_t>(error);
  if (code == cudaSuccess) return;
  throw std::runtime_error(std::string(call) + ": " + cudaGetErrorName(code) + ": " + cudaGetErrorString(code));
}

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

}  // namespace train_lm::cuda
#endif
