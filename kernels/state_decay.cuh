// Powers of two, and the decay of a state that is multiplied again and again, for the tensor-core kernels.
#pragma once

#include "device.cuh"

namespace lasp::gpu {

constexpr float kLog2E = 1.44269504088896341f, kLn2 = 0.693147180559945309f;

// 2^x; what would be subnormal is 0.
__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// 2^x as a factor of a state that is multiplied again and again. What rounding a weak decay leaves out, the same
// every time, would add up over thousands of chunks: the next factor makes it good. `carry` begins as 0.
__device__ __forceinline__ float state_decay(float x, float &carry) {
  constexpr float kLeast = -1.0f / 16;  // a stronger decay forgets what its roundings have added up to
  const bool weak = x > kLeast * kLog2E && x <= 0;
  // exp(e) - 1 by its series: the sixth term is below 2^-29 of the first.
  const float e = x * kLn2;
  float series = 1.0f / 120;
  series = fmaf(series, e, 1.0f / 24);
  series = fmaf(series, e, 1.0f / 6);
  series = fmaf(series, e, 0.5f);
  const float less = fmaf(series * e, e, e) + carry, factor = 1 + less;
  if (!weak) return exp2_fast(x);
  carry = less - (factor - 1);
  return factor;
}

}  // namespace lasp::gpu
