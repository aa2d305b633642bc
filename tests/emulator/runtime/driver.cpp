// Functions of the driver that liblasp and its tests ask the stand-in CUDA runtime for.
#include <cuda.h>

#include <string_view>

#include "runtime/capture.h"
#include "runtime/runtime.h"
#include "runtime/tensor_map.h"

struct CUctx_st {
  int device = 0;
};

namespace emulator::runtime {
namespace {

CUctx_st *context_of(int device) {
  static CUctx_st contexts[kMostDevices];
  contexts[device].device = device;
  return &contexts[device];
}

bool exists(int device) { return device >= 0 && device < device_count() && device < kMostDevices; }

CUresult initialize(unsigned) { return device_count() > 0 ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE; }
CUresult get_device(CUdevice *device, int index) {
  if (!exists(index)) return CUDA_ERROR_INVALID_DEVICE;
  return *device = index, CUDA_SUCCESS;
}
CUresult retain(CUcontext *context, CUdevice device) {
  if (!exists(device)) return CUDA_ERROR_INVALID_DEVICE;
  return *context = context_of(device), CUDA_SUCCESS;
}
CUresult release(CUdevice device) { return exists(device) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE; }
CUresult push(CUcontext context) {
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  return push_device(context->device), CUDA_SUCCESS;
}
CUresult pop(CUcontext *context) {
  const int device = pop_device();
  if (device < 0) return CUDA_ERROR_INVALID_CONTEXT;
  if (context != nullptr) *context = context_of(device);
  return CUDA_SUCCESS;
}
CUresult set_current(CUcontext context) {
  if (context == nullptr) return pop_device(), CUDA_SUCCESS;
  return set_current_device(context->device), CUDA_SUCCESS;
}
CUresult get_current(CUcontext *context) { return *context = context_of(current_device()), CUDA_SUCCESS; }

CUresult kernel_node_params(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS *params) {
  if (node->kernel == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *params = {};
  params->kern = static_cast<CUkernel>(const_cast<Kernel *>(node->kernel));
  return CUDA_SUCCESS;
}
CUresult kernel_name(const char **name, CUkernel kernel) { return *name = kernel->name.c_str(), CUDA_SUCCESS; }
CUresult function_name(const char **name, CUfunction function) {
  return kernel_name(name, reinterpret_cast<CUkernel>(function));
}

template <class Function>
void *erased(Function *function) {
  return reinterpret_cast<void *>(function);
}

}  // namespace

void *driver_function(const char *name) {
  const struct {
    std::string_view name;
    void *function;
  } functions[] = {{"cuInit", erased(initialize)},
                   {"cuDeviceGet", erased(get_device)},
                   {"cuDevicePrimaryCtxRetain", erased(retain)},
                   {"cuDevicePrimaryCtxRelease", erased(release)},
                   {"cuCtxPushCurrent", erased(push)},
                   {"cuCtxPopCurrent", erased(pop)},
                   {"cuCtxSetCurrent", erased(set_current)},
                   {"cuCtxGetCurrent", erased(get_current)},
                   {"cuGraphKernelNodeGetParams", erased(kernel_node_params)},
                   {"cuKernelGetName", erased(kernel_name)},
                   {"cuFuncGetName", erased(function_name)},
                   {"cuTensorMapEncodeTiled", erased(encode_tiled)}};
  for (const auto &entry : functions)
    if (entry.name == name) return entry.function;
  return shared_memory_function(name);
}

}  // namespace emulator::runtime

using namespace emulator::runtime;

cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult *result) {
  *function = driver_function(name);
  const bool found = *function != nullptr;
  if (result != nullptr) *result = found ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return note(found || result != nullptr ? cudaSuccess : cudaErrorSymbolNotFound);
}
