#!/usr/bin/env bash
# Configures and builds an example against an installed liblasp.
#     build.sh SOURCE_DIR BUILD_DIR PREFIX
set -euo pipefail
export CUDAARCHS=${CUDAARCHS:-90}  # one is enough to see that it compiles
source=$1 build=$2 prefix=$3
cmake -S "$source" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_PREFIX_PATH="$prefix"
cmake --build "$build" -j "$(nproc)"
