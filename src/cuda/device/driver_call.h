// Functions of the driver, found at run time, so that the library loads without one.
#pragma once

#include <cuda.h>

#include "base/status.h"
#include "cuda/device/cuda_call.h"

namespace lasp::cuda {

constexpr unsigned int kDriverInterface = 12000;  // of CUDA 12.0; all functions that are asked for are older

template <class Function>
void find_driver(Function &function, const char *name) {
  void *address = nullptr;
  cudaDriverEntryPointQueryResult result{};
  check(cudaGetDriverEntryPointByVersion(name, &address, kDriverInterface, cudaEnableDefault, &result), name);
  if (address == nullptr || result != cudaDriverEntryPointSuccess)
    throw fail(LASP_ERROR_NO_DEVICE, "device: the NVIDIA driver lacks %s; it is older than CUDA 12", name);
  function = reinterpret_cast<Function>(address);
}

inline void check_driver(int result, const char *what) {
  if (result == CUDA_ERROR_OUT_OF_MEMORY)
    throw fail(LASP_ERROR_DEVICE_MEMORY, "%s: the GPU has not enough free memory", what);
  if (result != CUDA_SUCCESS) throw fail(LASP_ERROR_DEVICE, "%s: the driver answered CUresult %d", what, result);
}

}  // namespace lasp::cuda
