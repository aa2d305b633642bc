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

// Not every compiler's __builtin_cpu_supports knows F16C. Under a hypervisor the instruction takes microseconds.
bool converts_halves() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}

}  // namespace
#endif

std::span<const Kernels *const> usable_kernels() {
#if defined(__x86_64__)
  static constexpr const Kernels *kAll[] = {&kernels_avx2, &kernels_baseline};
  static const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && converts_halves();
  return std::span(kAll).subspan(avx2 ? 0 : 1);
#else
  static constexpr const Kernels *kAll[] = {&kernels_baseline};
  return kAll;
#endif
}

}  // namespace lasp::cpu
