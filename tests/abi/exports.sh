#!/usr/bin/env bash
# The functions a library exports, those its header declares with LASP_API and those its committed list names are the
# same; its SONAME carries the ABI number; it needs only the libraries expected.
#     exports.sh HEADER MAP LIBRARY SONAME
set -euo pipefail
header=$1 map=$2 library=$3 soname=$4
failed=0

declared=$(grep -oE '^LASP_API [^(;]*\(' "$header" | grep -oE '[a-z0-9_]+\($' | tr -d '(' | sort)
listed=$(grep -vE '^ *#' "$map" | grep -oE '^ *lasp_[a-z0-9_]+;' | tr -d ' ;' | sort)
exported=$(nm -D --defined-only "$library" | awk '$2 != "A" { sub(/@.*/, "", $3); print $3 }' | sort)
[ -n "$declared" ] && [ -n "$listed" ] || { echo "found no declaration, or no list"; exit 1; }

compare() {  # compare WHAT A B
  local difference
  difference=$(diff <(printf '%s\n' "$2") <(printf '%s\n' "$3")) && return
  echo "$1 differ:"
  echo "$difference"
  failed=1
}
compare "the header (<) and the committed list (>)" "$declared" "$listed"
compare "the committed list (<) and the library's exports (>)" "$listed" "$exported"

dynamic=$(readelf -d "$library")
if ! grep -q "SONAME.*\[$soname\]" <<< "$dynamic"; then
  echo "SONAME is not $soname: $(grep SONAME <<< "$dynamic")"
  failed=1
fi
allowed='libc\.so|libm\.so|libstdc\+\+\.so|libgcc_s\.so|libpthread\.so|libdl\.so|ld-linux|lib(open|c)?blas'
case $soname in
  liblasp_mpi*) allowed="$allowed|liblasp\.so|libmpi" ;;
esac
[[ $dynamic =~ lib(asan|tsan)\.so ]] && allowed="$allowed|libasan|libubsan|libtsan"
if needed=$(grep -oP 'NEEDED.*\[\K[^]]+' <<< "$dynamic" | grep -vE "^($allowed)"); then
  echo "needs unexpected libraries:" $needed
  failed=1
fi
[ $failed = 0 ] && echo "$(wc -l <<< "$exported") functions, as declared and listed"
exit $failed
