#include "cuda/device/primary_context.h"

#include <cuda.h>

#include "base/status.h"
#include "cuda/device/cuda_call.h"

namespace lasp::cuda {
namespace {

constexpr unsigned int kDriverInterface = 12000;  // of CUDA 12.0; all four functions are older

// The driver is found at run time, so that the library loads without one.
template <class Function>
void find(Function &function, const char *name) {
  void *address = nullptr;
  cudaDriverEntryPointQueryResult result{};
  check(cudaGetDriverEntryPointByVersion(name, &address, kDriverInterface, cudaEnableDefault, &result), name);
  if (address == nullptr || result != cudaDriverEntryPointSuccess)
    throw fail(LASP_ERROR_NO_DEVICE, "device: the NVIDIA driver lacks %s; it is older than CUDA 12", name);
  function = reinterpret_cast<Function>(address);
}

void check_driver(int result, const char *what) {
  if (result == CUDA_ERROR_OUT_OF_MEMORY)
    throw fail(LASP_ERROR_DEVICE_MEMORY, "%s: the GPU has not enough free memory", what);
  if (result != CUDA_SUCCESS) throw fail(LASP_ERROR_DEVICE, "%s: the driver answered CUresult %d", what, result);
}

}  // namespace

PrimaryContext::PrimaryContext(int32_t device) {
  int (*get_device)(int *, int) = nullptr;
  Retain retain = nullptr;
  find(get_device, "cuDeviceGet");
  find(retain, "cuDevicePrimaryCtxRetain");
  find(release_, "cuDevicePrimaryCtxRelease");
  find(push_, "cuCtxPushCurrent");
  find(pop_, "cuCtxPopCurrent");
  check_driver(get_device(&device_, device), "cuDeviceGet");
  check_driver(retain(&context_, device_), "cuDevicePrimaryCtxRetain");
}

PrimaryContext::~PrimaryContext() { release_(device_); }

Current::Current(const PrimaryContext &context) : context_(context) {
  check_driver(context_.push_(context_.context_), "cuCtxPushCurrent");
}

Current::~Current() {
  CUctx_st *popped = nullptr;
  context_.pop_(&popped);
}

}  // namespace lasp::cuda
