// The search for values that no tensor should hold. A thread looks at every so many elements, by their bits: no
// type needs its value for what is looked for.
#include "values.h"

#include "device.cuh"

namespace lasp::gpu {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMostBlocks = 2048;

__device__ uint32_t bits_of(const void *data, DType type, int64_t at) {
  return type == DType::kFloat32 ? static_cast<const uint32_t *>(data)[at]
                                 : static_cast<const uint16_t *>(data)[at];
}

// -1: none.
__device__ int fault_of(uint32_t bits, DType type, bool is_decay) {
  const uint32_t sign = type == DType::kFloat32 ? 0x80000000u : 0x8000u;
  const uint32_t exponent = type == DType::kFloat32 ? 0x7f800000u : type == DType::kBFloat16 ? 0x7f80u : 0x7c00u;
  const uint32_t magnitude = bits & (sign - 1);
  if (magnitude > exponent) return static_cast<int>(ValueFault::kNan);
  if (is_decay) return magnitude != 0 && (bits & sign) == 0 ? static_cast<int>(ValueFault::kAboveZero) : -1;
  return magnitude == exponent ? static_cast<int>(ValueFault::kInfinity) : -1;
}

__global__ void __launch_bounds__(kThreads) search_kernel(int64_t first, ValueSearch p, int64_t count) {
  for (int64_t n = (first + blockIdx.x) * kThreads + threadIdx.x; n < count; n += int64_t{gridDim.x} * kThreads) {
    const int64_t vector = quotient(n, p.dim), token = quotient(vector, p.heads), row = quotient(token, p.tokens);
    const int64_t at =
        offset_of(p.strides, row, token - row * p.tokens, vector - token * p.heads) + n - vector * p.dim;
    const int fault = fault_of(bits_of(p.data, p.dtype, at), p.dtype, p.is_decay);
    if (fault < 0) continue;
    atomicMin(reinterpret_cast<unsigned long long *>(p.first), kFaults * static_cast<uint64_t>(n) + fault);
    return;  // what this thread would still see comes later
  }
}

}  // namespace

int launch_value_search(const ValueSearch &p, Stream stream) {
  const int64_t count = p.batch * p.tokens * p.heads * p.dim;
  return launch_blocks(search_kernel, std::min(kMostBlocks, ceil_div(count, kThreads)), kThreads, 0, stream, p,
                       count);
}

int load_value_search() { return load_kernel(search_kernel); }

}  // namespace lasp::gpu
