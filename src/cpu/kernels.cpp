#include "kernels.h"

namespace lasp::cpu {

extern const Kernels kernels_baseline;
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
extern const Kernels kernels_avx2;
#endif

const Kernels &kernels() {
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c")) {
    return kernels_avx2;
  }
#endif
  return kernels_baseline;
}

}  // namespace lasp::cpu
