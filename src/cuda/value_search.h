// check_values on a GPU: kernels look through tensors on the caller's stream, and the host waits for what they
// found.
#pragma once

#include <optional>
#include <span>

#include "cuda/device/device.h"
#include "engine/value_probe.h"

namespace lasp {

class ValueSearch {
 public:
  // The current device is the context's.
  explicit ValueSearch(CudaDevice &device);
  ~ValueSearch();

  std::optional<ValueFound> find(std::span<const ValueProbe> probes, cudaStream_t stream);
  void read(void *to, const void *from, size_t bytes, cudaStream_t stream);

 private:
  std::optional<ValueFound> find_some(std::span<const ValueProbe> probes, cudaStream_t stream);

  CudaDevice &device_;
  std::optional<cuda::Staging> found_;  // a number for each of some probes
};

}  // namespace lasp
