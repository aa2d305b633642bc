// The work of a rank as kernels read it: runs and segments in device memory, made once with the plan.
#pragma once

#include <cstdint>
#include <vector>

#include "../../kernels/launch.h"
#include "../problem.h"
#include "../work.h"
#include "cuda_call.h"

namespace lasp::cuda {

// An array copied to the current device once. Freed on the device it was made on.
template <class T>
class DeviceArray {
 public:
  DeviceArray() = default;
  explicit DeviceArray(const std::vector<T> &values) : size_(static_cast<int64_t>(values.size())) {
    if (values.empty()) return;
    const size_t bytes = values.size() * sizeof(T);
    void *memory = nullptr;
    check(cudaGetDevice(&device_), "asking for the current device");
    check(cudaMalloc(&memory, bytes), "allocating a plan's tables");
    data_ = static_cast<T *>(memory);
    if (const cudaError_t error = cudaMemcpy(data_, values.data(), bytes, cudaMemcpyHostToDevice)) {
      cudaFree(data_);
      check(error, "copying a plan's tables");
    }
  }
  ~DeviceArray() { reset(); }
  DeviceArray(DeviceArray &&other) noexcept { *this = static_cast<DeviceArray &&>(other); }
  DeviceArray &operator=(DeviceArray &&other) noexcept {
    if (this == &other) return *this;
    reset();
    data_ = other.data_, size_ = other.size_, device_ = other.device_;
    other.data_ = nullptr, other.size_ = 0;
    return *this;
  }

  const T *data() const { return data_; }
  int64_t size() const { return size_; }

 private:
  void reset() noexcept {
    if (data_ == nullptr) return;
    int previous = -1;
    cudaGetDevice(&previous);
    cudaSetDevice(device_);
    cudaFree(data_);
    if (previous >= 0) cudaSetDevice(previous);
    data_ = nullptr;
  }

  T *data_ = nullptr;
  int64_t size_ = 0;
  int device_ = 0;
};

// A cut of the rank's segments into runs of at most `run_tokens` tokens.
struct Partition {
  Partition(const Work &work, int64_t run_tokens);

  DeviceArray<gpu::Run> runs;
  DeviceArray<gpu::Segment> segments;
  // Runs of segments into which a state from another rank enters, and the others; [0] forward, [1] reversed.
  DeviceArray<gpu::Run> consumers[2], independent[2];
};

}  // namespace lasp::cuda
