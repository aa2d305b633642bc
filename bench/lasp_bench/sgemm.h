// The yardstick: this machine's own rate of single-precision matrix products, by the CBLAS the library uses.
#pragma once

#include <vector>

namespace bench {

// Rates in GFLOP/s of products 1024 x 1024 x 1024 with `threads` threads (where the BLAS is OpenBLAS; another keeps
// its own setting). One warm-up, then up to five samples in at most half a second, but at least one.
std::vector<double> sgemm_rates(int threads);

}  // namespace bench
