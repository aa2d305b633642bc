#!/usr/bin/env bash
# The CPU's kernels compile for aarch64, with warnings as errors, and multiply and add in NEON's vectors of four floats.
# Needs a compiler for that machine (apt: g++-aarch64-linux-gnu), else skipped.     aarch64.sh SOURCE_DIR CBLAS_INCLUDE_DIR
set -euo pipefail
compiler=$(command -v aarch64-linux-gnu-g++) ||
  { echo "SKIPPED: aarch64-linux-gnu-g++ is not here (apt install g++-aarch64-linux-gnu)"; exit 77; }
cd "$1"
options=(-std=c++20 -O2 -Wall -Wextra -Werror -Isrc -Icapi/include -isystem "$2")
for file in kernels.cpp gemm.cpp chunk_tiles.cpp; do
  "$compiler" "${options[@]}" -fsyntax-only "src/cpu/$file"
done
fused=$("$compiler" "${options[@]}" -S -o - src/cpu/kernels_baseline.cpp | grep -c 'fmla.*\.4s') || true
[ "$fused" -ge 20 ] || { echo "FAILED: $fused fused operations on vectors of four floats in kernels_baseline.cpp"; exit 1; }
echo "the kernels have $fused fused operations on vectors of four floats"
