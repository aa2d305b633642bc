#!/usr/bin/env bash
# No installed file names a folder of this machine, and the libraries are small: their debug information lies in files
# of its own, where tools find it.     files.sh SOURCE_DIR BUILD_DIR WORK_DIR LIBDIR [mpi] [tools] [debug]
set -euo pipefail
source=$1 build=$2 prefix=$3/prefix lib=$3/prefix/$4 parts=" ${*:5} "
# For a build without CUDA. With its debug information it would have three times as much.
most_bytes=900000
failed=0
unset DESTDIR
fail() { echo "$*"; failed=1; }
has() { [[ $parts = *" $1 "* ]]; }

rm -rf "$prefix"
cmake --install "$build" --prefix "$prefix" > /dev/null
! has debug || cmake --install "$build" --prefix "$prefix" --component debug > /dev/null

for path in "$source" "$build" "$prefix"; do
  ! found=$(grep -rlaF -- "$path" "$prefix") || fail "$path is named in:"$'\n'"$found"
done

# split LIBRARY FUNCTION: the library has no names but those it exports; addr2line finds the file beside it, even after
# the build split them twice.
split() {
  local library name address line
  library=$(realpath "$1") name=$(basename "$library")
  "$source/cmake/split_debug_info" objcopy readelf "$library"
  [[ ! $(readelf -SW "$library") =~ \ \.(debug_|symtab) ]] || fail "$name holds debug information or local symbols"
  address=$(nm -D "$library" | awk -v name="$2" '{ sub(/@.*/, "", $3) } $3 == name { print $1 }')
  line=$(addr2line -e "$library" "$address")
  [[ $line =~ ^\./.*\.cpp:[0-9]+ ]] || fail "$2 of $name is at \"$line\", not at a line of a source file"
}
if has debug; then
  split "$lib/liblasp.so" lasp_forward
  ! has mpi || split "$lib/liblasp_mpi.so" lasp_mpi_comm_create
  bytes=$(stat -Lc %s "$lib/liblasp.so")
  if [[ $(readelf -SW "$lib/liblasp.so") = *" .nv_fatbin "* ]]; then
    echo "not compared: the size of liblasp.so, $bytes bytes, most of which is device code"
  else
    echo "liblasp.so has $bytes bytes, $most_bytes at most"
    [ "$bytes" -le $most_bytes ] || fail "too large"
  fi
else
  echo "not looked for: debug information, which only a Release build splits off"
fi
[ $failed = 0 ] && echo "$(find "$prefix" -type f | wc -l) files name no folder of this machine"
exit $failed
