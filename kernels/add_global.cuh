// Sums in global memory to which one thread adds in a launch: nobody waits for what was there.
#pragma once

#include "tensor_core.cuh"

namespace lasp::gpu {

__device__ __forceinline__ void add_global(float *to, float x) {
  asm volatile("red.global.add.f32 [%0], %1;" ::"l"(to), "f"(x) : "memory");
}
template <typename T>
__device__ __forceinline__ void add_global(uint4 *to, const uint4 &v) {
#if __CUDA_ARCH__ >= 900
  if constexpr (kIsBFloat16<T>) {
    asm volatile("red.global.add.noftz.v4.bf16x2 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(v.x), "r"(v.y), "r"(v.z),
                 "r"(v.w)
                 : "memory");
  } else {
    asm volatile("red.global.add.noftz.v4.f16x2 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(v.x), "r"(v.y), "r"(v.z),
                 "r"(v.w)
                 : "memory");
  }
#else
  const auto sum = [](uint32_t x, uint32_t y) {
    const float2 a = unpack<T>(x), b = unpack<T>(y);
    return pack<T>(a.x + b.x, a.y + b.y);
  };
  const uint4 there = *to;
  *to = {sum(v.x, there.x), sum(v.y, there.y), sum(v.z, there.z), sum(v.w, there.w)};
#endif
}

}  // namespace lasp::gpu
