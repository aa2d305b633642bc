// The kernels for AVX-512 (F, BW, DQ and VL): the code of kernels_avx2.cpp, with twice the registers and masks in
// place of blends. Its vectors stay eight floats long. As there, every system header comes before the pragma.
#if defined(__x86_64__)
#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "core/decay.h"
#include "kernels.h"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl"))), \
                             apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")
#endif
#define LASP_F16C 1
#define LASP_FMA 1  // the pragma does not define __FMA__ in C++
#include "channel_kernels.h"
#include "convert_kernels.h"
#include "delta_kernels.h"
#include "product_kernels.h"
#include "row_kernels.h"
#include "score_kernels.h"

namespace lasp::cpu {

extern const Kernels kernels_avx512;
const Kernels kernels_avx512 = {
    "AVX-512",
    "avx512",
#include "kernels_table.inc"
};

}  // namespace lasp::cpu
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif
