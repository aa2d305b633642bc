// wgmma: a warpgroup's 64 x N x 16 matrix products, N = 32, 64 or 128, float32 accumulators in registers, B in
// shared memory, A in shared memory or registers. Accumulator element 4j + 2r + e of lane l of warp w is row 16w +
// 8r + l/4, column 8j + 2(l%4) + e.
#pragma once

#include "ptx.cuh"

namespace lasp::gpu::hopper {

// A tile's descriptor. Tiles are swizzled panels, 128 or 64 bytes wide, whose groups of 8 rows lie `8 * width`
// apart. With one panel across M or N both strides of the descriptor may hold that distance, whichever of them is
// read.
template <int kWidth>
__device__ __forceinline__ uint64_t tile_descriptor(uint32_t address) {
  static_assert(kWidth == 128 || kWidth == 64);
  constexpr uint64_t kGroup = 8 * kWidth / 16, kSwizzle = kWidth == 128 ? 1 : 2;
  return (uint64_t(address & 0x3ffff) >> 4) | kGroup << 16 | kGroup << 32 | kSwizzle << 62;
}
// The same for a right operand of 128 columns that lies as [rows, 128] in two panels of 64: `distance` bytes apart.
__device__ __forceinline__ uint64_t wide_descriptor(uint32_t address, uint32_t distance) {
  return (uint64_t(address & 0x3ffff) >> 4) | uint64_t(distance / 16) << 16 | uint64_t(64) << 32 |
         uint64_t(1) << 62;
}
__device__ __forceinline__ uint64_t advance(uint64_t descriptor, uint32_t bytes) {
  return descriptor + (bytes >> 4);
}

__device__ __forceinline__ void wgmma_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Waits until at most `kPending` committed groups run on. The registers named are theirs that are complete then:
// the compiler must not read them earlier.
template <int kPending, int kCount>
__device__ __forceinline__ void wgmma_wait(float (&registers)[kCount]) {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(registers[i])::"memory");
}

#define LASP_R4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define LASP_R16(d, i) LASP_R4(d, i), LASP_R4(d, i + 4), LASP_R4(d, i + 8), LASP_R4(d, i + 12)
#define LASP_NAMES16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define LASP_NAMES32 LASP_NAMES16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"

#define LASP_NAMES64                                                                                  \
  LASP_NAMES32                                                                                        \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, " \
  "%51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"

#define LASP_WGMMA_SHARED(n, type, names, a, b, go, ta, tb, ...)                                         \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " go                                                    \
               ", 0;\n"                                                                                  \
               "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " {" names "}, " a ", " b \
               ", p, 1, 1, " ta ", " tb ";\n}"                                                           \
               : __VA_ARGS__                                                                             \
               : "l"(desc_a), "l"(desc_b), "r"(int(accumulate)), "n"(int(kTransA)), "n"(int(kTransB)))
#define LASP_WGMMA_REGISTERS(n, type, names, a0, a1, a2, a3, b, tb, ...)                                    \
  asm volatile("wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " {" names "}, {" a0 ", " a1 \
               ", " a2 ", " a3 "}, " b ", 1, 1, 1, " tb ";"                                                 \
               : __VA_ARGS__                                                                                \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(desc_b), "n"(int(kTransB)))

// d = A B, or d += A B where `accumulate`. kTransA: A lies in memory as [16, 64]; kTransB: B lies as [16, N].
template <typename T, bool kTransA, bool kTransB, int kCount>
__device__ __forceinline__ void wgmma(float (&d)[kCount], uint64_t desc_a, uint64_t desc_b, bool accumulate) {
  static_assert(kCount == 16 || kCount == 32 || kCount == 64);
  constexpr bool kBf16 = __is_same(T, __nv_bfloat16);
  if constexpr (kCount == 16 && kBf16) {
    LASP_WGMMA_SHARED(32, "bf16", LASP_NAMES16, "%16", "%17", "%18", "%19", "%20", LASP_R16(d, 0));
  } else if constexpr (kCount == 16) {
    LASP_WGMMA_SHARED(32, "f16", LASP_NAMES16, "%16", "%17", "%18", "%19", "%20", LASP_R16(d, 0));
  } else if constexpr (kCount == 64 && kBf16) {
    LASP_WGMMA_SHARED(128, "bf16", LASP_NAMES64, "%64", "%65", "%66", "%67", "%68", LASP_R16(d, 0), LASP_R16(d, 16),
                      LASP_R16(d, 32), LASP_R16(d, 48));
  } else if constexpr (kCount == 64) {
    LASP_WGMMA_SHARED(128, "f16", LASP_NAMES64, "%64", "%65", "%66", "%67", "%68", LASP_R16(d, 0), LASP_R16(d, 16),
                      LASP_R16(d, 32), LASP_R16(d, 48));
  } else if constexpr (kBf16) {
    LASP_WGMMA_SHARED(64, "bf16", LASP_NAMES32, "%32", "%33", "%34", "%35", "%36", LASP_R16(d, 0), LASP_R16(d, 16));
  } else {
    LASP_WGMMA_SHARED(64, "f16", LASP_NAMES32, "%32", "%33", "%34", "%35", "%36", LASP_R16(d, 0), LASP_R16(d, 16));
  }
}

// d += A B with A in registers, laid out as pairs of the accumulators of a 64 x 16 product.
template <typename T, bool kTransB, int kCount>
__device__ __forceinline__ void wgmma(float (&d)[kCount], const uint32_t *a, uint64_t desc_b) {
  static_assert(kCount == 16 || kCount == 32 || kCount == 64);
  constexpr bool kBf16 = __is_same(T, __nv_bfloat16);
  if constexpr (kCount == 16 && kBf16) {
    LASP_WGMMA_REGISTERS(32, "bf16", LASP_NAMES16, "%16", "%17", "%18", "%19", "%20", "%21", LASP_R16(d, 0));
  } else if constexpr (kCount == 16) {
    LASP_WGMMA_REGISTERS(32, "f16", LASP_NAMES16, "%16", "%17", "%18", "%19", "%20", "%21", LASP_R16(d, 0));
  } else if constexpr (kCount == 64 && kBf16) {
    LASP_WGMMA_REGISTERS(128, "bf16", LASP_NAMES64, "%64", "%65", "%66", "%67", "%68", "%69", LASP_R16(d, 0),
                         LASP_R16(d, 16), LASP_R16(d, 32), LASP_R16(d, 48));
  } else if constexpr (kCount == 64) {
    LASP_WGMMA_REGISTERS(128, "f16", LASP_NAMES64, "%64", "%65", "%66", "%67", "%68", "%69", LASP_R16(d, 0),
                         LASP_R16(d, 16), LASP_R16(d, 32), LASP_R16(d, 48));
  } else if constexpr (kBf16) {
    LASP_WGMMA_REGISTERS(64, "bf16", LASP_NAMES32, "%32", "%33", "%34", "%35", "%36", "%37", LASP_R16(d, 0),
                         LASP_R16(d, 16));
  } else {
    LASP_WGMMA_REGISTERS(64, "f16", LASP_NAMES32, "%32", "%33", "%34", "%35", "%36", "%37", LASP_R16(d, 0),
                         LASP_R16(d, 16));
  }
}

#undef LASP_WGMMA_SHARED
#undef LASP_WGMMA_REGISTERS
#undef LASP_NAMES16
#undef LASP_NAMES32
#undef LASP_NAMES64
#undef LASP_R16
#undef LASP_R4

}  // namespace lasp::gpu::hopper
