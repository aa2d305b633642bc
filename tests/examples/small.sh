#!/usr/bin/env bash
# Builds an example of one file against an installed liblasp, as a stranger would, and runs it.
#     small.sh SOURCE_FILE INSTALLED_LIB_DIR WORK_DIR KIND COMPILER [ARGUMENT...]        KIND: pkgconfig or cmake
set -euo pipefail
source=$1 lib_dir=$2 work=$3 kind=$4 compiler=$5
rm -rf "$work"
mkdir -p "$work"
name=$(basename "$source" | cut -d. -f1)

if [ "$kind" = cmake ]; then
  cmake -S "$(dirname "$source")" -B "$work" -DCMAKE_PREFIX_PATH="$(dirname "$lib_dir")" -DCMAKE_BUILD_TYPE=Release
  cmake --build "$work"
else
  if ! command -v pkg-config > /dev/null; then
    echo "SKIPPED: pkg-config is not here"
    exit 77
  fi
  standard=-std=c99
  [ "${source##*.}" = cpp ] && standard=-std=c++17
  read -r -a flags <<< "$(PKG_CONFIG_PATH=$lib_dir/pkgconfig pkg-config --cflags --libs lasp)"
  "$compiler" $standard -pedantic -Wall -Wextra -Wshadow -Wconversion -Werror -O1 "$source" "${flags[@]}" \
    -Wl,-rpath,"$lib_dir" -pthread -lm -o "$work/$name"
fi
"$work/$name" "${@:6}"
