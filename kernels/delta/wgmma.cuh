// wgmma with the left operand in registers: d += A B, 64 x N x 16, N = 16, 32, 48 or 64.
#pragma once

#include "../hopper/wgmma.cuh"

namespace lasp::gpu::delta_hopper {

#define LASP_F4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define LASP_F8(d, i) LASP_F4(d, i), LASP_F4(d, i + 4)
#define LASP_N8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define LASP_N16 LASP_N8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define LASP_N24 LASP_N16 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define LASP_N32 LASP_N24 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define LASP_MULTIPLY(n, type, names, a0, a1, a2, a3, b, go, tb, ...)                                       \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " go                                                       \
               ", 0;\n"                                                                                     \
               "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " {" names "}, {" a0 ", " a1 \
               ", " a2 ", " a3 "}, " b ", p, 1, 1, " tb ";\n}"                                              \
               : __VA_ARGS__                                                                                \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b_tile), "r"(int(accumulate)), "n"(int(kTransB)))

// d: the accumulators of the first of the N columns. A: four registers, pairs of the accumulators of a 64 x 16
// product. kTransB: B lies in memory as [16, N], else as [N, 16]. Where not `accumulate`, d = A B.
template <typename T, int kColumns, bool kTransB>
__device__ __forceinline__ void multiply(float *d, const uint32_t *a, uint64_t b_tile, bool accumulate) {
  constexpr bool kBf16 = kIsBFloat16<T>;
  static_assert(kColumns == 16 || kColumns == 32 || kColumns == 48 || kColumns == 64);
#define LASP_BOTH(n, names, a0, a1, a2, a3, b, go, tb, ...)                  \
  if constexpr (kBf16) {                                                     \
    LASP_MULTIPLY(n, "bf16", names, a0, a1, a2, a3, b, go, tb, __VA_ARGS__); \
  } else {                                                                   \
    LASP_MULTIPLY(n, "f16", names, a0, a1, a2, a3, b, go, tb, __VA_ARGS__);  \
  }
  if constexpr (kColumns == 16) {
    LASP_BOTH(16, LASP_N8, "%8", "%9", "%10", "%11", "%12", "%13", "%14", LASP_F8(d, 0))
  } else if constexpr (kColumns == 32) {
    LASP_BOTH(32, LASP_N16, "%16", "%17", "%18", "%19", "%20", "%21", "%22", LASP_F8(d, 0), LASP_F8(d, 8))
  } else if constexpr (kColumns == 48) {
    LASP_BOTH(48, LASP_N24, "%24", "%25", "%26", "%27", "%28", "%29", "%30", LASP_F8(d, 0), LASP_F8(d, 8),
              LASP_F8(d, 16))
  } else {
    LASP_BOTH(64, LASP_N32, "%32", "%33", "%34", "%35", "%36", "%37", "%38", LASP_F8(d, 0), LASP_F8(d, 8),
              LASP_F8(d, 16), LASP_F8(d, 24))
  }
#undef LASP_BOTH
}

#undef LASP_MULTIPLY
#undef LASP_N8
#undef LASP_N16
#undef LASP_N24
#undef LASP_N32
#undef LASP_F4
#undef LASP_F8

// Keeps the compiler from moving reads or writes of registers that the tensor cores hold.
template <int kCount>
__device__ __forceinline__ void pin(float (&x)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(x[i])::"memory");
}

}  // namespace lasp::gpu::delta_hopper
