#include "cuda/device/primary_context.h"

#include "cuda/device/driver_call.h"

namespace lasp::cuda {

PrimaryContext::PrimaryContext(int32_t device) {
  int (*get_device)(int *, int) = nullptr;
  Retain retain = nullptr;
  find_driver(get_device, "cuDeviceGet");
  find_driver(retain, "cuDevicePrimaryCtxRetain");
  find_driver(release_, "cuDevicePrimaryCtxRelease");
  find_driver(push_, "cuCtxPushCurrent");
  find_driver(pop_, "cuCtxPopCurrent");
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
