// Thin wrappers of the instructions that the tensor-core kernels for compute capability 8.0 and later are made of:
// mma, cp.async and named barriers; and pairs of elements in a high and a low part.
//
// Fragments of mma.m16n8k16, lane l, r = l / 4, q = l % 4: A[16 x 16] in four registers: (r, 2q..), (r + 8, 2q..),
// (r, 2q + 8..), (r + 8, 2q + 8..); B[16 x 8] in two: (2q.., r), (2q + 8.., r); C[16 x 8] in four floats:
// (r, 2q..), (r + 8, 2q..).
#pragma once

#include <cstdint>

#include "../tensor_core.cuh"

namespace lasp::gpu::mma {

// This thread, asked for anew: what is worked out from it then needs no register in between.
__device__ __forceinline__ int thread_again() {
  int x;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(x));
  return x;
}

// What rounding to 16 bits left out: x = high + low to 16 (float16: 22) bits.
template <typename T>
__device__ __forceinline__ uint32_t pack_rest(float low, float high, uint32_t rounded) {
  const float2 taken = unpack<T>(rounded);
  return pack<T>(low - taken.x, high - taken.y);
}

// Two elements times their factors, rounded; what the rounding leaves out in *low.
template <typename T>
__device__ __forceinline__ uint32_t scale_pair(uint32_t pair, float2 factor, uint32_t *low) {
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
