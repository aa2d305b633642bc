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
extern const Kernels kernels_avx512;

std::span<const Kernels *const> kernels_for(const ProcessorFeatures &p) {
  static constexpr const Kernels *kAll[] = {&kernels_avx512, &kernels_avx2, &kernels_baseline};
  constexpr uint32_t kBasic = bit_OSXSAVE | bit_AVX | bit_FMA | bit_F16C;
  constexpr uint32_t kWide = bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL;
  constexpr uint32_t kVectors = 0x6, kMasksAndWide = 0xe0;  // registers of SSE and AVX; those that AVX-512 adds
  const bool avx2 =
      (p.basic & kBasic) == kBasic && (p.saved & kVectors) == kVectors && (p.extended & bit_AVX2) != 0;
  const bool avx512 = avx2 && (p.extended & kWide) == kWide && (p.saved & kMasksAndWide) == kMasksAndWide;
  return std::span(kAll).subspan(avx512 ? 0 : avx2 ? 1 : 2);
}

namespace {

// Asked of the processor itself: __builtin_cpu_supports is empty without a compiler's own run-time library, which
// the wheel's clang does not link, and does not know F16C everywhere. Under a hypervisor this takes microseconds.
ProcessorFeatures ask_processor() {
  ProcessorFeatures p;
  uint32_t a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid(1, &a, &b, &p.basic, &d) == 0 || (p.basic & bit_OSXSAVE) == 0) return {};
  asm("xgetbv" : "=a"(p.saved), "=d"(d) : "c"(0));
  if (__get_cpuid_count(7, 0, &a, &p.extended, &c, &d) == 0) p.extended = 0;
  return p;
}

}  // namespace

std::span<const Kernels *const> usable_kernels() {
  static const std::span<const Kernels *const> usable = kernels_for(ask_processor());
  return usable;
}
#else
std::span<const Kernels *const> usable_kernels() {
  static constexpr const Kernels *kAll[] = {&kernels_baseline};
  return kAll;
}
#endif

}  // namespace lasp::cpu
