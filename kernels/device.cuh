// What every generic kernel shares: elements of any type as float32, offsets, and launches that pass no grid limit.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>

#include "launch.h"

namespace lasp::gpu {

__device__ inline float as_float(float x) { return x; }
__device__ inline float as_float(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ inline float as_float(__half x) { return __half2float(x); }

// Calls `use` with `data` as a pointer to its elements.
template <class Use>
__device__ auto with_elements(const void *data, DType type, Use use) {
  switch (type) {
    case DType::kBFloat16: return use(static_cast<const __nv_bfloat16 *>(data));
    case DType::kFloat16: return use(static_cast<const __half *>(data));
    default: return use(static_cast<const float *>(data));
  }
}

__device__ inline float load_element(const void *data, DType type, int64_t at) {
  return with_elements(data, type, [&](const auto *elements) { return as_float(elements[at]); });
}

__device__ inline void store_element(void *data, DType type, int64_t at, float value) {
  switch (type) {
    case DType::kBFloat16: static_cast<__nv_bfloat16 *>(data)[at] = __float2bfloat16_rn(value); break;
    case DType::kFloat16: static_cast<__half *>(data)[at] = __float2half_rn(value); break;
    default: static_cast<float *>(data)[at] = value;
  }
}

// A result: written over what is there, or added to it and rounded once.
__device__ inline void put_element(void *data, DType type, int64_t at, float value, bool adds) {
  store_element(data, type, at, adds ? load_element(data, type, at) + value : value);
}

// Four at a time; `from` is aligned to 16 bytes.
template <int kCount>
__device__ void load_vector(float (&to)[kCount], const float *from) {
  static_assert(kCount % 4 == 0);
#pragma unroll
  for (int i = 0; i < kCount; i += 4) {
    const float4 x = *reinterpret_cast<const float4 *>(from + i);
    to[i] = x.x, to[i + 1] = x.y, to[i + 2] = x.z, to[i + 3] = x.w;
  }
}

// Element (b, t, h, 0) of a tensor whose heads serve `heads` output heads in groups.
__host__ __device__ inline int64_t offset_of(const Strides &s, int64_t b, int64_t t, int64_t h) {
  return b * s.batch + t * s.token + h * s.head;
}
__device__ inline int64_t offset_of(const Tensor &x, int64_t b, int64_t t, int64_t h, int32_t heads) {
  return offset_of(x.strides, b, t, h * x.heads / heads);
}

// The power of two that g is the log of, to the last bit of float32: r where g is the float32 nearest to r ln 2, so
// that decays of 1/2, 1/4 .. are exact over any number of tokens. False where there is none.
__device__ inline bool is_power_of_two(float g, float *r) {
  constexpr float kHigh = 0.693147182464599609375f, kLow = -1.90465429995776804525e-9f;  // ln 2
  *r = rintf(g * 1.44269504f);
  return g == fmaf(*r, kHigh, *r * kLow) && fabsf(*r) < 126.0f;
}
__device__ inline float decay_of(float g) {
  float r;
  return is_power_of_two(g, &r) ? exp2f(r) : expf(g);
}

// How a decay is stored where it multiplies a state again and again: the code of src/core/decay.h. A decay near 1
// is kept as exp(g) - 1, with its sign bit set: x + x (exp(g) - 1) is rounded once and by chance, while the
// rounding of exp(g) itself, the same at every token, would add up over thousands of them. A strong decay is kept
// as exp(g), sign bit clear, so that it stays right when tiny.
constexpr float kWeak = -0.5f;  // the weakest log decay that is kept as exp(g)
__device__ inline float decay_code(float g) {
  if (g <= kWeak || g > 0) return decay_of(g);
  return g == 0 ? -0.0f : expm1f(g);
}
__device__ inline float decay_code(double g) {
  if (g <= kWeak || g > 0) return static_cast<float>(exp(g));
  return g == 0 ? -0.0f : static_cast<float>(expm1(g));
}
__device__ inline float decayed(float x, float code) { return fmaf(x, code, signbit(code) ? x : 0.0f); }
// A decay of 0, which what it multiplies, be it infinite, leaves nothing of.
__device__ inline bool forgets_all(float code) { return __float_as_int(code) == 0; }
// The decay that a code stands for, and the code of a decay.
__device__ inline double decay_value(float code) { return signbit(code) ? 1.0 + code : code; }
__device__ inline float value_code(double decay) {
  constexpr double kLeastWeak = 0.606530659712633424;  // exp(kWeak)
  if (!(decay > kLeastWeak && decay <= 1)) return static_cast<float>(decay);
  return copysignf(static_cast<float>(decay - 1), -1.0f);
}

// n g, with g taken as the multiple of ln 2 that it is nearest to.
__device__ inline double log_decay_power(float g, int64_t n) {
  if (n == 0) return 0;  // also where g is -inf
  constexpr double kLn2 = 0.693147180559945309417;
  float r;
  return static_cast<double>(n) * (is_power_of_two(g, &r) ? kLn2 * static_cast<double>(r) : static_cast<double>(g));
}

// a / b, neither negative: as most are small, by a division that is several times as fast.
__device__ inline int64_t quotient(int64_t a, int64_t b) {
  return ((a | b) >> 32) == 0 ? static_cast<int64_t>(static_cast<uint32_t>(a) / static_cast<uint32_t>(b)) : a / b;
}
inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Launches `blocks` blocks of a kernel whose first parameter is the index of its first block, in as many launches
// as the grid's limit of 2^31 - 1 asks for. No blocks: no launch.
template <class... Parameters, class... Arguments>
int launch_blocks(void (*kernel)(int64_t, Parameters...), int64_t blocks, int threads, size_t shared, Stream stream,
                  Arguments... arguments) {
  constexpr int64_t kMost = 0x7fffffff;
  for (int64_t first = 0; first < blocks; first += kMost) {
    kernel<<<static_cast<unsigned>(std::min(kMost, blocks - first)), threads, shared, stream>>>(first,
                                                                                                arguments...);
    if (const cudaError_t error = cudaGetLastError()) return error;
  }
  return cudaSuccess;
}

// How much dynamic shared memory a block may have beside the kernel's static one, of the current device.
inline int most_dynamic_shared(const cudaFuncAttributes &kernel, int *most) {
  int device = 0;
  if (const cudaError_t error = cudaGetDevice(&device)) return error;
  if (const cudaError_t error = cudaDeviceGetAttribute(most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device))
    return error;
  *most -= static_cast<int>(kernel.sharedSizeBytes);
  return cudaSuccess;
}

// Loads a kernel and raises its limit of dynamic shared memory to what it ever asks for, as far as the device has
// it. Once, before any launch: the limit belongs to the kernel, not to a launch, and other threads launch too.
template <class Kernel>
int load_kernel(Kernel kernel, size_t shared = 0) {
  cudaFuncAttributes attributes;
  if (const cudaError_t error = cudaFuncGetAttributes(&attributes, kernel)) return error;
  if (shared == 0) return cudaSuccess;
  int most = 0;
  if (const int error = most_dynamic_shared(attributes, &most)) return error;
  return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              std::min(static_cast<int>(shared), most));
}

template <class... Kernels>
int load_kernels(Kernels... kernels) {
  int error = cudaSuccess;
  ((error = error != cudaSuccess ? error : load_kernel(kernels)), ...);
  return error;
}

}  // namespace lasp::gpu
