#include "kernels.h"

#include "core/problem.h"

namespace lasp::cpu {

// Kernels are compiled for several processors, and share no header with the rest of the library.
static_assert(kMostCols == kMaxHeadDim);

extern const Kernels kernels_baseline;
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
extern const Kernels kernels_avx2;
#endif

std::span<const Kernels *const> usable_kernels() {
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
  static constexpr const Kernels *kAll[] = {&kernels_avx2, &kernels_baseline};
  const bool avx2 =
      __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  return std::span(kAll).subspan(avx2 ? 0 : 1);
#else
  static constexpr const Kernels *kAll[] = {&kernels_baseline};
  return kAll;
#endif
}

}  // namespace lasp::cpu
