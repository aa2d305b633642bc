// The kernels for AVX2 with FMA and F16C. Every system header comes before the pragma, so that no inline function
// of the standard library is compiled for a processor that the rest of the program may not have.
#if defined(__x86_64__)
#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "core/decay.h"
#include "kernels.h"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
#endif
#define LASP_F16C 1
#define LASP_FMA 1  // the pragma does not define __FMA__ in C++
#define LASP_OWN_PRODUCTS 1
#include "channel_kernels.h"
#include "convert_kernels.h"
#include "delta_kernels.h"
#include "product_kernels.h"
#include "row_kernels.h"
#include "score_kernels.h"

namespace lasp::cpu {

extern const Kernels kernels_avx2;
const Kernels kernels_avx2 = {
    "AVX2",
    "avx2",
#include "kernels_table.inc"
};

}  // namespace lasp::cpu
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif
