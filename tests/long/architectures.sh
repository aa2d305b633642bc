#!/usr/bin/env bash
# Compiles and links the library, device code for every architecture of LASP_CUDA_ARCHITECTURES' default, with warnings as
# errors; .ci/run does so for 9.0 alone. Then looks for hot kernels that spill.
#     tests/long/architectures.sh BUILD_DIR [JOBS]
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
build=$1/tests/architectures
configured=$(cmake -S "$root" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DLASP_BUILD_TESTS=OFF -DLASP_WERROR=ON)
printf '%s\n' "$configured"
grep -q 'CUDA backend *yes' <<< "$configured" || { echo "SKIPPED: the CUDA backend cannot be built here"; exit 77; }
cmake --build "$build" --target lasp -j "${2:-1}"
objects=$build/capi/CMakeFiles
"$root/tests/abi/spills.sh" "$objects/lasp_kernels_hopper.dir" "$objects/lasp_kernels.dir"
"$root/tests/abi/spills.sh" "$objects/lasp_kernels_mma.dir"
