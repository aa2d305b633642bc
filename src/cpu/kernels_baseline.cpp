// The kernels for the instruction set the build asked for (plain x86-64 unless told otherwise).
#pragma GCC diagnostic ignored "-Wpsabi"  // vectors are passed between inlined functions only

#include "channel_kernels.h"
#include "convert_kernels.h"
#include "delta_kernels.h"
#include "product_kernels.h"
#include "row_kernels.h"
#include "score_kernels.h"

namespace lasp::cpu {

extern const Kernels kernels_baseline;
const Kernels kernels_baseline = {
    "portable vectors",
    "portable",
#include "kernels_table.inc"
};

}  // namespace lasp::cpu
