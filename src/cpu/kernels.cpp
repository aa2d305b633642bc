#include "kernels.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "core/problem.h"

namespace lasp::cpu {

// Kernels are compiled for several processors, and share no header with the rest of the library.
static_assert(kMostCols == kMaxHeadDim);

extern const Kernels kernels_baseline;
#if defined(__x86_64__)
extern const Kernels kernels_avx2;

namespace {

// Asked of the processor itself: __builtin_cpu_supports is empty without a compiler's own run-time library, which
// the wheel's clang does not link, and does not know F16C everywhere. Under a hypervisor this takes microseconds.
bool has_avx2() {
  constexpr unsigned kWanted = bit_OSXSAVE | bit_AVX | bit_FMA | bit_F16C;
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0 || (c & kWanted) != kWanted) return false;
  unsigned saved = 0, high = 0;
  asm("xgetbv" : "=a"(saved), "=d"(high) : "c"(0));  // the registers that the system saves, SSE's and AVX's
  return (saved & 6) == 6 && __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (b & bit_AVX2) != 0;
}

}  // namespace
#endif

std::span<const Kernels *const> usable_kernels() {
#if defined(__x86_64__)
  static constexpr const Kernels *kAll[] = {&kernels_avx2, &kernels_baseline};
  static const bool avx2 = has_avx2();
  return std::span(kAll).subspan(avx2 ? 0 : 1);
#else
  static constexpr const Kernels *kAll[] = {&kernels_baseline};
  return kAll;
#endif
}

}  // namespace lasp::cpu
