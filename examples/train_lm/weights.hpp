// A model's parameters on a device: float32, and where activations are narrower a copy as matrix products read it.
#pragma once

#include <cstddef>

#include "device.hpp"

namespace train_lm {

// The parameters, and what matrix products read of them: the same array, or the copy.
struct Weights {
  const float *parameters;
  Real matrices;
};

class Parameters {
 public:
  Parameters(Device &device, std::size_t count)
      : device_(device),
        masters_(device, count),
        copy_(device, device.element_bytes() == sizeof(float) ? 0 : count) {}

  // From the host's memory. Other streams may read them after it.
  void set(const float *values) {
    device_.copy(masters_.data(), values, masters_.bytes());
    device_.narrow(masters_.data(), masters_.size(), matrices());
    device_.wait();
  }

  float *masters() { return masters_.data(); }
  Real matrices() {
    return copy_.bytes() > 0 ? copy_.first() : Real{reinterpret_cast<std::byte *>(masters_.data()), sizeof(float)};
  }
  Weights weights() { return {masters(), matrices()}; }

 private:
  Device &device_;
  DeviceArray<float> masters_;
  RealArray copy_;
};

}  // namespace train_lm
