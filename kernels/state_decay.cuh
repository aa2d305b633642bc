// Decays as powers of two, clamped, and as factors of a state that is multiplied again and again, for the
// tensor-core kernels.
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

// A stronger log2 decay of one token counts as this one: exp2 of it is 0 in float32, sums of 64 keep their
// fraction, and -inf leaves no inf - inf.
constexpr float kLeastLog2 = -160;
// A log decay in base 2, clamped so. A NaN stays one (fmaxf would hide it).
__device__ __forceinline__ float clamped_log2(float g) {
  float x;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(x) : "f"(g * kLog2E), "f"(kLeastLog2));
  return x;
}

// 2^x as a factor of a state that is multiplied again and again. What rounding a weak decay leaves out, the same
// every time, would add up over thousands of chunks: `compensation` hands it to the next factor. It begins as 0.
__device__ __forceinline__ float state_decay(float x, float &compensation) {
  constexpr float kLeast = -1.0f / 16;  // a stronger decay forgets what its roundings have added up to
  const bool weak = x > kLeast * kLog2E && x <= 0;
  // exp(e) - 1 by its series: the sixth term is below 2^-29 of the first.
  const float e = x * kLn2;
  float series = 1.0f / 120;
  series = fmaf(series, e, 1.0f / 24);
  series = fmaf(series, e, 1.0f / 6);
  series = fmaf(series, e, 0.5f);
  const float less = fmaf(series * e, e, e) + compensation, factor = 1 + less;
  if (!weak) return exp2_fast(x);
  compensation = less - (factor - 1);
  return factor;
}

}  // namespace lasp::gpu
