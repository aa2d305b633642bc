#!/usr/bin/env bash
# The wheel that `make wheel` made: each Python from 3.11 on that is here installs it into a fresh virtual environment and
# computes with it, with no program on the PATH; C programs are built and run with its library, by pkg-config and by
# CMake; pip refuses it where the C library is another or older; it has the GPU code that it should have, and at most
# 60 MB. SKIPPED where no wheel of this source is there.
#     wheel.sh SOURCE_DIR WORK_DIR CC
# LASP_PYTHONS: the interpreters to use, in place of those that are found. LASP_WHEEL_ARCHITECTURES: what --architectures
# of packaging/wheel/build was, where it was given.
set -euo pipefail
source=$1 work=$2 cc=$3
unset LD_LIBRARY_PATH PYTHONPATH MAKEFLAGS
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 PYTHONDONTWRITEBYTECODE=1
skip() { echo "SKIPPED: $1"; exit 77; }
fail() { echo "FAILED: $*"; exit 1; }

wheel=$(find "$source/build/wheels" -name "liblasp-*_$(uname -m).whl" 2> /dev/null | head -1 || true)
[ -n "$wheel" ] || skip "there is no wheel; make wheel makes one"
rm -rf "$work"
mkdir -p "$work"
python3 -m zipfile -e "$wheel" "$work/holds"
cmp -s "$work/holds/liblasp/include/lasp/lasp.h" "$source/capi/include/lasp/lasp.h" ||
  skip "the wheel is of another lasp.h; make wheel makes one of this"

# Each minor version once.
pythons=${LASP_PYTHONS:-$(compgen -c python3. | grep -xE 'python3\.[0-9]+' | sort -u | while read -r name; do type -aP "$name"; done
  ls "$HOME"/.pyenv/versions/3.*/bin/python3 2> /dev/null || true)}
declare -A seen=()
first=
for python in $pythons; do
  version=$("$python" -c 'import sys, venv, ensurepip; print("%d.%d" % sys.version_info[:2])' 2> /dev/null) || continue
  [ -z "${seen[$version]:-}" ] && [ "${version#3.}" -ge 11 ] || continue
  seen[$version]=$python
  venv=$work/$version
  "$python" -m venv "$venv"
  # With an empty folder for a PATH: no compiler, no CUDA toolkit.
  mkdir -p "$work/nothing"
  PATH=$work/nothing "$venv/bin/python" -m pip -q --retries 1 install "$wheel" > "$work/log" 2>&1 || {
    grep -q "Could not find.*numpy\|numpy.*No matching" "$work/log" && skip "pip cannot have NumPy here"
    cat "$work/log"
    fail "Python $version does not install it"
  }
  PATH=$work/nothing "$venv/bin/python" "$source/tests/install/wheel.py" "$(echo "$venv"/lib/python*/site-packages)"
  first=${first:-$venv}
done
[ -n "$first" ] || skip "no Python from 3.11 on has venv and ensurepip"

# GPU code: what CMakeLists.txt names for a release, or none, and the library says the same.
wanted=${LASP_WHEEL_ARCHITECTURES:-$(sed -nE 's/^set\(LASP_CUDA_ARCHITECTURES "([^"]*)".*/\1/p' "$source/CMakeLists.txt")}
told=$("$first/bin/python" -c 'import liblasp; print(liblasp.build_info().cuda)')
case $told in
  absent*) wanted=none ;;
  *"compiled for ${wanted//;/ }"*) ;;
  *) fail "the library says \"$told\", it should be compiled for ${wanted//;/ }" ;;
esac
holds=$(python3 "$source/tests/install/device_code.py" "$work/holds/liblasp/lib/liblasp.so.$(sed -n 's/^#define LASP_ABI //p' "$source/capi/include/lasp/lasp.h")")
sorted() { tr ' ;' '\n\n' | sed -E '/^[0-9]+[af]?$/{s/$/-real/;p;s/-real/-virtual/}' | LC_ALL=C sort | paste -sd ' '; }
[ "$(sorted <<< "$holds")" = "$(sorted <<< "$wanted")" ] || fail "it holds GPU code for $holds, not for ${wanted//;/ }"
echo "GPU code: $holds"

# C, as docs/guide/install.md says.
ask() { "$first/bin/python" -m liblasp "--$1"; }
read -r -a flags <<< "$(PKG_CONFIG_PATH=$(ask pkgconfig-dir) pkg-config --cflags --libs lasp)"
"$cc" -std=c99 "$source/examples/c/attention.c" "${flags[@]}" "-Wl,-rpath,$(ask library-dir)" -pthread -lm -o "$work/by_pc"
"$cc" -std=c99 "$source/examples/c/attention.c" -I"$(ask include)" -L"$(ask library-dir)" -llasp \
  "-Wl,-rpath,$(ask library-dir)" -pthread -lm -o "$work/by_hand"
cmake -S "$source/examples/c" -B "$work/cmake" -DCMAKE_C_COMPILER="$cc" -Dlasp_DIR="$(ask cmake-dir)" > "$work/log" ||
  { cat "$work/log"; fail "CMake does not find it"; }
cmake --build "$work/cmake" > "$work/log" || { cat "$work/log"; fail "CMake does not build with it"; }
for program in by_pc by_hand cmake/attention; do
  found=$(ldd "$work/$program" | awk '$1 ~ /^liblasp\.so/ { print $3 }')
  [ "$(realpath -m "$found")" = "$(realpath "$(ask library-dir)")/liblasp.so.$(sed -n 's/^#define LASP_ABI //p' "$source/capi/include/lasp/lasp.h")" ] ||
    fail "$program would run with $found"
  "$work/$program" > /dev/null || fail "$program"
done
echo "C programs: by pkg-config, by hand, by CMake"

# Elsewhere pip does not take it: musl, an older glibc, another machine.
for platform in musllinux_1_2_x86_64 manylinux_2_27_x86_64 manylinux_2_17_x86_64 manylinux_2_28_s390x; do
  ! "$first/bin/pip" -q download --no-deps --no-index --find-links "$(dirname "$wheel")" --only-binary :all: --platform $platform \
    -d "$work/elsewhere" liblasp > "$work/log" 2>&1 || fail "pip takes it for $platform"
  grep -q "No matching distribution" "$work/log" || { cat "$work/log"; fail "pip says something else for $platform"; }
done
"$first/bin/pip" -q download --no-deps --no-index --find-links "$(dirname "$wheel")" --only-binary :all: \
  --platform "manylinux_2_28_$(uname -m)" -d "$work/elsewhere" liblasp
bytes=$(stat -c %s "$wheel")
[ "$bytes" -le 60000000 ] || fail "it has $bytes bytes, 60 MB at most"
echo "$(basename "$wheel"): $((bytes / 1000)) kB, Pythons ${!seen[*]}"
rm -rf "$work"
