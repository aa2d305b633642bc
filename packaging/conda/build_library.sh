#!/usr/bin/env bash
# rattler-build's step for the package liblasp.
set -euo pipefail
cmake -G Ninja -S . -B build/conda $CMAKE_ARGS -DCMAKE_BUILD_TYPE=Release -DLASP_BUILD_TESTS=OFF -DLASP_WITH_MPI=OFF
cmake --build build/conda --target product
cmake --install build/conda --prefix "$PREFIX"
