#!/usr/bin/env bash
# No symbol in a file of debug information is named after a temporary file of nvcc, whose name has a process's number in
# it: two builds would never be the same (cmake/split_debug_info).     debug_names.sh FILE
set -euo pipefail
symbols=$(readelf --symbols --wide "$1")
lines=$(wc -l <<< "$symbols")
[ "$lines" -gt 100 ] || { echo "$1 has no symbols to speak of"; exit 1; }
! grep -m 3 tmpxft_ <<< "$symbols" || exit 1
echo "$lines lines of symbols, none named after a temporary file"
