#!/usr/bin/env bash
# The life of an installed tree, by the commands that README.md and docs/guide/install.md name: `make install` puts
# there what tree.txt lists; a program is built and runs with it by pkg-config and by CMake, and again after the tree has
# moved; `make uninstall` leaves nothing but what others put there.
#     tree.sh SOURCE_DIR BUILD_DIR WORK_DIR LIBDIR CC VERSION CONFIG [mpi] [tools] [debug]
set -euo pipefail
source=$1 build=$2 work=$3/tree libdir=$4 cc=$5 version=$6 config=${7,,} parts=" ${*:8} "
has() { [[ $parts = *" $1 "* ]]; }
skip() { echo "SKIPPED: $1"; exit 77; }
fail() { echo "FAILED: $*"; exit 1; }
unset LD_LIBRARY_PATH DESTDIR MAKEFLAGS
command -v make > /dev/null || skip "make is not here"
command -v pkg-config > /dev/null || skip "pkg-config is not here"

# The build is the one under test, and finished: make need not build it (-o).
by_make() { make -s -C "$source" -o build BUILD="$build" "$@"; }
files_below() { (cd "$1" && find . ! -type d | sed 's,^\./,,' | LC_ALL=C sort); }

# What tree.txt lists for this build.
listed() {
  local abi path needs part
  abi=$(sed -n 's/^#define LASP_ABI //p' "$source/capi/include/lasp/lasp.h")
  while read -r path needs; do
    for part in $needs; do has "$part" || continue 2; done
    echo "$path"
  done < "$source/tests/install/tree.txt" |
    sed "/^#/d; s,^lib/,$libdir/,; s/@VERSION@/$version/; s/@ABI@/$abi/; s/@CONFIG@/$config/" | LC_ALL=C sort
}
compare() {  # compare PREFIX
  local difference
  difference=$(diff <(listed) <(files_below "$1")) ||
    fail "tests/install/tree.txt (<) and $1 (>) differ:"$'\n'"$difference"
}

runs() {  # runs PROGRAM, with the library of the tree in $prefix
  local found
  found=$(ldd "$1" | awk '$1 ~ /^liblasp\.so/ { print $3 }')
  [ "$(realpath -m "$found")" = "$(realpath "$prefix/$libdir/liblasp.so")" ] || fail "$1 would run with $found"
  "$1" > /dev/null || fail "$1"
}
use() {  # use PREFIX, as docs/guide/install.md says, by the example that is installed there
  local prefix=$1 example=$1/share/doc/lasp/examples/c built=$work/built flags rpath tool
  rm -rf "$built"
  mkdir -p "$built"
  export PKG_CONFIG_PATH=$prefix/$libdir/pkgconfig
  read -r -a flags <<< "$(pkg-config --cflags --libs lasp)"
  rpath=-Wl,-rpath,$(pkg-config --variable=libdir lasp)
  "$cc" -std=c99 "$example/attention.c" "${flags[@]}" -pthread -lm -o "$built/by_path"
  "$cc" -std=c99 "$example/attention.c" "${flags[@]}" "$rpath" -pthread -lm -o "$built/by_rpath"
  cmake -S "$example" -B "$built/cmake" -DCMAKE_C_COMPILER="$cc" -DCMAKE_PREFIX_PATH="$prefix" > /dev/null
  cmake --build "$built/cmake" > /dev/null
  LD_LIBRARY_PATH=$prefix/$libdir runs "$built/by_path"
  runs "$built/by_rpath"
  runs "$built/cmake/attention"
  if has tools; then
    for tool in lasp-info lasp-bench; do
      [[ $("$prefix/bin/$tool" --version) = "$tool $version, liblasp $version, ABI "* ]] || fail "$tool --version"
    done
    [[ $("$prefix/bin/lasp-trace" --version) = "lasp-trace $version" ]] || fail "lasp-trace --version"
  fi
  echo "used in $prefix"
}

rm -rf "$work"
mkdir -p "$work"
first=$work/first second=$work/moved/second
by_make install PREFIX="$first" > /dev/null
! has debug || by_make install-debug PREFIX="$first" > /dev/null
compare "$first"
use "$first"
mkdir "$work/moved"
mv "$first" "$second"
use "$second"
by_make install PREFIX="$second" > /dev/null  # over the same: nothing is listed twice or forgotten
! has debug || by_make install-debug PREFIX="$second" > /dev/null
compare "$second"
by_make uninstall PREFIX="$second"
[ -z "$(ls -A "$work/moved")" ] || fail "left behind: $(find "$work/moved")"

# Staged, among folders and files of others, which stay.
stage=$work/stage opt=$work/stage/opt/lasp
mkdir -p "$opt/bin" "$opt/include/lasp"
touch "$opt/include/lasp/others.h"
by_make install DESTDIR="$stage" PREFIX=/opt/lasp > /dev/null
touch "$opt/share/doc/lasp/others.md"
by_make uninstall DESTDIR="$stage" PREFIX=/opt/lasp
left=$(cd "$opt" && echo $(find . | LC_ALL=C sort))
[ "$left" = ". ./bin ./include ./include/lasp ./include/lasp/others.h ./share ./share/doc ./share/doc/lasp ./share/doc/lasp/others.md" ] ||
  fail "left behind: $left"

# Where nothing was installed, or the list leads elsewhere, nothing is removed.
! by_make uninstall PREFIX="$opt" 2> "$work/refused" || fail "uninstall found something in $opt"
grep -q "was not installed into $opt" "$work/refused" || fail "uninstall says: $(cat "$work/refused")"
mkdir -p "$opt/share/lasp"
echo ../lasp/include/lasp/others.h > "$opt/share/lasp/installed-files"
! by_make uninstall PREFIX="$opt" 2> "$work/refused" || fail "uninstall left its prefix"
[ -e "$opt/include/lasp/others.h" ] || fail "uninstall removed a file outside of its prefix"
rm -rf "$work"
echo "$(listed | wc -l) files, as tests/install/tree.txt lists them; none left"
