// What the tensor-core kernels of hopper/ and mma/ share: shared addresses, pairs of 16-bit elements in one
// register, and matrices and 16-byte pieces on their way between registers and shared memory.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace lasp::gpu {

// Shared memory is named by 32-bit shared addresses, as the instructions want them.
__device__ __forceinline__ uint32_t shared_address(const void *p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// ---- Pairs of elements: the low half is the first.

template <typename T>
inline constexpr bool kIsBFloat16 = __is_same(T, __nv_bfloat16);

template <typename T>
__device__ __forceinline__ uint32_t pack(float low, float high) {
  uint32_t to;
  if constexpr (kIsBFloat16<T>) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(to) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(to) : "f"(high), "f"(low));
  }
  return to;
}
template <typename T>
__device__ __forceinline__ float2 unpack(uint32_t pair) {
  if constexpr (kIsBFloat16<T>) {
    return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u)};
  } else {
    return __half22float2(reinterpret_cast<const __half2 &>(pair));
  }
}

// ---- Four 8 x 8 matrices of 16-bit elements; lane l gives the address of row l % 8 of matrix l / 8.

__device__ __forceinline__ void load_matrices(uint32_t (&to)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(address)
               : "memory");
}
__device__ __forceinline__ void load_matrices_transposed(uint32_t (&to)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(address)
               : "memory");
}

// ---- Pieces of 16 bytes.

__device__ __forceinline__ uint4 load_shared_16(uint32_t from) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(from)
               : "memory");
  return v;
}
__device__ __forceinline__ void store_shared_16(uint32_t to, uint4 v) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
               : "memory");
}

}  // namespace lasp::gpu
