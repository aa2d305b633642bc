// A PackingOf whose offsets lie in memory of the current GPU, where `on_device`.
#pragma once

#include "support/device.h"
#include "support/packing.h"

namespace lasp_test {

class DevicePacking {
 public:
  DevicePacking(const std::vector<int64_t> &offsets, bool narrow, bool on_device) : host_(offsets, narrow) {
    if (host_.get() == nullptr) return;
    packing_ = *host_.get();
    if (!on_device) return;
    const lasp_const_buffer from = packing_.cu_seqlens;
    device_ = gpu::allocate(from.bytes);
    gpu::copy(device_, from.data, from.bytes, nullptr);
    gpu::wait(nullptr);
    packing_.cu_seqlens.data = device_;
  }
  ~DevicePacking() {
    if (device_ != nullptr) gpu::release(device_, packing_.cu_seqlens.bytes);
  }
  DevicePacking(const DevicePacking &) = delete;
  DevicePacking &operator=(const DevicePacking &) = delete;

  const lasp_packing *get() const { return host_.get() == nullptr ? nullptr : &packing_; }

 private:
  PackingOf host_;
  lasp_packing packing_ = LASP_PACKING_INIT;
  void *device_ = nullptr;
};

}  // namespace lasp_test
