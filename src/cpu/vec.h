// Eight floats at a time, in the compiler's own vector types: every dimension of a tensor is a multiple of eight.
// Included only by the kernel headers, which are compiled once for each instruction set (see kernels.h).
#pragma once

#include <cstdint>
#include <cstring>

namespace lasp::cpu {
namespace {

typedef float Vec __attribute__((vector_size(32)));
typedef float HalfVec __attribute__((vector_size(16)));
typedef double DoubleVec __attribute__((vector_size(32)));
typedef int32_t IntVec __attribute__((vector_size(32)));
typedef uint32_t UIntVec __attribute__((vector_size(32)));
constexpr int64_t kLanes = 8;

#define LASP_INLINE inline __attribute__((always_inline))

template <class V>
LASP_INLINE V load_as(const void *from) {
  V x;
  std::memcpy(&x, from, sizeof(V));
  return x;
}
template <class V>
LASP_INLINE void store_as(void *to, const V &x) {
  std::memcpy(to, &x, sizeof(V));
}
LASP_INLINE Vec load(const float *from) { return load_as<Vec>(from); }
LASP_INLINE void store(float *to, const Vec &x) { store_as(to, x); }
LASP_INLINE Vec splat(float x) { return x - Vec{}; }
LASP_INLINE DoubleVec splat(double x) { return x - DoubleVec{}; }

LASP_INLINE HalfVec low(const Vec &x) { return __builtin_shufflevector(x, x, 0, 1, 2, 3); }
LASP_INLINE HalfVec high(const Vec &x) { return __builtin_shufflevector(x, x, 4, 5, 6, 7); }

// Keeps a product's own rounding where the compiler would fuse it into a sum in one use and not in another.
LASP_INLINE Vec rounded(const Vec &x) {
#if defined(LASP_FMA)
  Vec y = x;
  asm("" : "+x"(y));
  return y;
#elif defined(__aarch64__)  // always has it; a register holds half of a Vec
  HalfVec a = low(x), b = high(x);
  asm("" : "+w"(a), "+w"(b));
  return __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7);
#else
  return x;
#endif
}

LASP_INLINE Vec select(const IntVec &mask, const Vec &yes, const Vec &no) {
  return reinterpret_cast<Vec>((reinterpret_cast<IntVec>(yes) & mask) | (reinterpret_cast<IntVec>(no) & ~mask));
}
LASP_INLINE IntVec lane_index() { return IntVec{0, 1, 2, 3, 4, 5, 6, 7}; }

LASP_INLINE DoubleVec widen(const HalfVec &x) { return __builtin_convertvector(x, DoubleVec); }
LASP_INLINE Vec narrow(const DoubleVec &lo, const DoubleVec &hi) {
  return __builtin_shufflevector(__builtin_convertvector(lo, HalfVec), __builtin_convertvector(hi, HalfVec), 0, 1,
                                 2, 3, 4, 5, 6, 7);
}

LASP_INLINE float sum(const Vec &x) {
  const HalfVec s = low(x) + high(x);
  return (s[0] + s[2]) + (s[1] + s[3]);
}
LASP_INLINE double sum(const DoubleVec &x) { return (x[0] + x[2]) + (x[1] + x[3]); }

constexpr float kLowestExponent = -87.33654f, kHighestExponent = 88.72283f;

// exp(r) - 1, |r| <= ln 2 / 2
LASP_INLINE Vec expm1_of_rest(const Vec &r) {
  Vec p = splat(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  return p * (r * r) + r;
}

// 2^whole * exp(r); `whole` may be 128, so it is taken in two factors. Zero, infinite or a NaN where the whole
// exponent x says so.
LASP_INLINE Vec exp_of_parts(const IntVec &whole, const Vec &r, const Vec &x) {
  const Vec p = expm1_of_rest(r) + 1.0f;
  const IntVec half = whole >> 1;
  const Vec first = reinterpret_cast<Vec>((half + 127) << 23);
  const Vec second = reinterpret_cast<Vec>((whole - half + 127) << 23);
  Vec y = p * first * second;
  y = select(x < kLowestExponent, Vec{}, y);
  y = select(x > kHighestExponent, splat(__builtin_inff()), y);
  return select(x != x, x, y);
}

// exp(x), about one unit in the last place; exp(0) is exactly 1. Results below the smallest normal number are zero:
// a subnormal would only slow every product down. A NaN stays one; above 88.7 the result is infinite.
LASP_INLINE Vec exp(const Vec &x) {
  const Vec lowest = splat(kLowestExponent), highest = splat(kHighestExponent);
  const Vec clamped = select(x < lowest, lowest, select(x > highest, highest, x));
  const Vec rounder = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to a whole number
  const Vec shifted = clamped * 1.44269504f + rounder;
  const Vec n = shifted - rounder;
  const IntVec whole = reinterpret_cast<IntVec>(shifted) - reinterpret_cast<IntVec>(rounder);
  Vec r = clamped - n * 0.693359375f;  // ln 2 in two parts, the first so short that n * it is exact
  r = r + n * 2.12194440e-4f;
  return exp_of_parts(whole, r, x);
}

// For eight doubles: a sum of many decays keeps its last digits until only the fraction of ln 2 is left.
LASP_INLINE void reduce(const DoubleVec &sum, DoubleVec *whole, DoubleVec *rest) {
  const DoubleVec rounder = splat(6755399441055744.0);  // 1.5 * 2^52
  // Outside the range the result is settled by the caller; here only n has to stay an int.
  const DoubleVec x = sum < -1e4 ? splat(-1e4) : sum > 1e4 ? splat(1e4) : sum;
  *whole = (x * 1.4426950408889634 + rounder) - rounder;
  *rest = x - *whole * 0.6931471805599453;
}
// x = whole * ln 2 + r
LASP_INLINE Vec reduce(const DoubleVec &lo, const DoubleVec &hi, IntVec *whole) {
  DoubleVec n_lo, n_hi, r_lo, r_hi;
  reduce(lo, &n_lo, &r_lo);
  reduce(hi, &n_hi, &r_hi);
  *whole = __builtin_convertvector(narrow(n_lo, n_hi), IntVec);
  return narrow(r_lo, r_hi);
}
LASP_INLINE Vec exp(const DoubleVec &lo, const DoubleVec &hi) {
  IntVec whole;
  const Vec r = reduce(lo, hi, &whole);
  return exp_of_parts(whole, r, narrow(lo, hi));
}

// The code of exp(x) (decay.h). Where x is in (-1/2, 0], `whole` is 0 or -1.
LASP_INLINE Vec decay_code(const DoubleVec &lo, const DoubleVec &hi) {
  IntVec whole;
  const Vec r = reduce(lo, hi, &whole), x = narrow(lo, hi);
  const Vec power = reinterpret_cast<Vec>((whole + 127) << 23);
  const Vec less_one = expm1_of_rest(r) * power + (power - 1.0f);
  const Vec weak = reinterpret_cast<Vec>(reinterpret_cast<UIntVec>(less_one) | 0x80000000u);
  return select((x > -0.5f) & (x <= 0.0f), weak, exp_of_parts(whole, r, x));
}

}  // namespace
}  // namespace lasp::cpu
