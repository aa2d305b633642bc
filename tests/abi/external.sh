#!/usr/bin/env bash
# Builds the C project in external/ against an installed liblasp, as a stranger would, and runs it.
#     external.sh SOURCE_DIR INSTALLED_LIB_DIR WORK_DIR KIND CC [MPIEXEC]
# KIND: pkgconfig, cmake, mpi_pkgconfig or mpi_cmake.
set -euo pipefail
source=$1 lib_dir=$2 work=$3/$4 kind=$4 cc=$5 mpiexec=${6:-}
rm -rf "$work"
mkdir -p "$work"

case $kind in
  *pkgconfig)
    if ! command -v pkg-config > /dev/null; then
      echo "SKIPPED: pkg-config is not here"
      exit 77
    fi
    package=lasp program=attend
    [ "$kind" = mpi_pkgconfig ] && package=lasp_mpi program=attend_mpi
    export PKG_CONFIG_PATH=$lib_dir/pkgconfig
    read -r -a flags <<< "$(pkg-config --cflags --libs $package)"
    echo "pkg-config --cflags --libs $package: ${flags[*]}"
    "$cc" -std=c99 -pedantic -Wall -Wextra -Werror "$source/$program.c" "$source/naive.c" "${flags[@]}" \
      -Wl,-rpath,"$lib_dir" -pthread -lm -o "$work/$program"
    ;;
  *cmake)
    program=attend
    [ "$kind" = mpi_cmake ] && program=attend_mpi
    cmake -S "$source" -B "$work" -DCMAKE_C_COMPILER="$cc" -DCMAKE_PREFIX_PATH="$(dirname "$lib_dir")" \
      -DWITH_MPI="$([ "$kind" = mpi_cmake ] && echo ON || echo OFF)"
    cmake --build "$work" --target "$program"
    ;;
esac

case $kind in
  mpi_*) "$mpiexec" -n 4 "$work/$program" ;;
  *) "$work/$program" ;;
esac
