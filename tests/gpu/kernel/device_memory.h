// What the kernel tests share: device memory that frees itself, 16-bit elements on the host, runs.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "../../../kernels/launch.h"

namespace lasp::gpu {

inline void check(int status, const char *what) {
  if (status == cudaSuccess) return;
  std::printf("%s: %s\n", what, cudaGetErrorString(cudaError_t(status)));
  std::exit(1);
}

struct DeviceMemory {
  void *data = nullptr;
  size_t bytes = 0;
  explicit DeviceMemory(size_t n) : bytes(n) { check(cudaMalloc(&data, n), "cudaMalloc"); }
  DeviceMemory(const DeviceMemory &) = delete;
  ~DeviceMemory() { cudaFree(data); }
  template <typename T>
  void put(const std::vector<T> &from) {
    check(cudaMemcpy(data, from.data(), from.size() * sizeof(T), cudaMemcpyHostToDevice), "to the device");
  }
  template <typename T>
  std::vector<T> get() const {
    std::vector<T> to(bytes / sizeof(T));
    check(cudaMemcpy(to.data(), data, to.size() * sizeof(T), cudaMemcpyDeviceToHost), "from the device");
    return to;
  }
};

// A copy of a vector, of at least one element.
struct DeviceCopy : DeviceMemory {
  template <typename T>
  explicit DeviceCopy(const std::vector<T> &from) : DeviceMemory(std::max<size_t>(from.size(), 1) * sizeof(T)) {
    put(from);
  }
};

inline Run make_run(int64_t row, int64_t begin, int32_t length, int64_t state = 0) {
  Run run;
  run.row = row, run.path = int32_t(row), run.begin = begin, run.length = length, run.state = state;
  return run;
}

inline uint16_t round_to(DType type, float x) {
  uint16_t bits;
  if (type == DType::kBFloat16) {
    const __nv_bfloat16 r = __float2bfloat16(x);
    std::memcpy(&bits, &r, 2);
  } else {
    const __half r = __float2half(x);
    std::memcpy(&bits, &r, 2);
  }
  return bits;
}
inline float widen(DType type, uint16_t bits) {
  if (type == DType::kBFloat16) {
    __nv_bfloat16 r;
    std::memcpy(static_cast<void *>(&r), &bits, 2);
    return __bfloat162float(r);
  }
  __half r;
  std::memcpy(static_cast<void *>(&r), &bits, 2);
  return __half2float(r);
}
inline constexpr uint16_t kNan = 0x7fff;  // in both types

}  // namespace lasp::gpu
