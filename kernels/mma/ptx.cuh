// Thin wrappers of the instructions that the tensor-core kernels for compute capability 8.0 and later are made of:
// mma, ldmatrix, cp.async and named barriers; and pairs of 16-bit elements as one register.
//
// Fragments of mma.m16n8k16, lane l, r = l / 4, q = l % 4: A[16 x 16] in four registers: (r, 2q..), (r + 8, 2q..),
// (r, 2q + 8..), (r + 8, 2q + 8..); B[16 x 8] in two: (2q.., r), (2q + 8.., r); C[16 x 8] in four floats:
// (r, 2q..), (r + 8, 2q..).
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace lasp::gpu::mma {

template <typename T>
inline constexpr bool kIsBFloat16 = __is_same(T, __nv_bfloat16);

__device__ __forceinline__ uint32_t shared_address(const void *p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// ---- Pairs of elements: the low half is the first.

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
// What rounding to 16 bits left out: x = high + low to 16 (float16: 22) bits.
template <typename T>
__device__ __forceinline__ uint32_t pack_rest(float low, float high, uint32_t rounded) {
  const float2 taken = unpack<T>(rounded);
  return pack<T>(low - taken.x, high - taken.y);
}

// Two elements times their factors, rounded; what the rounding leaves out in *low.
template <typename T>
__device__ __forceinline__ uint32_t weigh(uint32_t pair, float2 factor, uint32_t *low) {
  const float2 x = unpack<T>(pair);
  const float left = x.x * factor.x, right = x.y * factor.y;
  const uint32_t high = pack<T>(left, right);
  if (low) *low = pack_rest<T>(left, right, high);
  return high;
}

// ---- Tensor cores

// d += A B.
template <typename T>
__device__ __forceinline__ void multiply(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  if constexpr (kIsBFloat16<T>) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

// Four 8 x 8 matrices of 16-bit elements; lane l gives the address of row l % 8 of matrix l / 8.
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

// ---- Copies from global to shared memory

// 16 bytes; zeros where not `valid` (nothing is read then).
__device__ __forceinline__ void copy_16(uint32_t to, const void *from, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid ? 16 : 0)
               : "memory");
}
__device__ __forceinline__ void copies_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Until at most kPending groups of this thread's copies run on.
template <int kPending>
__device__ __forceinline__ void copies_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// ---- Barriers of some of a block's warps; 0 is __syncthreads.

template <int kThreads>
__device__ __forceinline__ void sync_some(int id) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "n"(kThreads) : "memory");
}
// Whether `any` of them says so.
template <int kThreads>
__device__ __forceinline__ bool sync_some_or(int id, bool any) {
  int result;
  asm volatile("{\n.reg .pred p, r;\nsetp.ne.b32 p, %1, 0;\nbar.red.or.pred r, %2, %3, p;\nselp.b32 %0, 1, 0, r;\n}"
               : "=r"(result)
               : "r"(int(any)), "r"(id), "n"(kThreads)
               : "memory");
  return result != 0;
}

}  // namespace lasp::gpu::mma
