#!/usr/bin/env bash
# The wheel for aarch64, built here and run by Debian's Python of that machine under QEMU: it computes, and C's example
# program does. Then the CPU's test programs, cross-built by Debian's compiler, those of the public interface with the
# wheel's library. Needs mmdebstrap, qemu-user-static, g++-aarch64-linux-gnu and Debian's packages, else skipped.
#     aarch64.sh BUILD_DIR JOBS
set -euo pipefail
cd "$(dirname "$0")/../.."
skip() { echo "SKIPPED: $1"; exit 77; }
fail() { echo "FAILED: $*"; exit 1; }
qemu=$(command -v qemu-aarch64-static) || skip "qemu-aarch64-static is not here (apt install qemu-user-static)"
command -v mmdebstrap > /dev/null || skip "mmdebstrap is not here (apt install mmdebstrap)"
command -v aarch64-linux-gnu-g++ > /dev/null || skip "aarch64-linux-gnu-g++ is not here (apt install g++-aarch64-linux-gnu)"
work=$(mktemp -d)
trap 'rm -rf --one-file-system "$work"' EXIT
# Unpacked alone: nothing of it has to run for that.
mmdebstrap --quiet --variant=extract --architectures=arm64 --include=python3-numpy,libopenblas-dev,libgtest-dev,libstdc++-12-dev \
  bookworm "$work/root" > "$work/log" 2>&1 ||
  skip "Debian's packages for arm64 cannot be had: $(tail -1 "$work/log")"
wheel=${LASP_WHEEL:-}
if [ -z "$wheel" ]; then
  CMAKE_BUILD_PARALLEL_LEVEL=${2:-1} packaging/wheel/build --cpu --arch aarch64 --out "$work" || fail "the wheel was not built"
  wheel=$(echo "$work"/liblasp-*aarch64.whl)
fi
python3 -m zipfile -e "$wheel" "$work/site"

libraries=$work/root/usr/lib/aarch64-linux-gnu
# Two processors, without and with SVE. With SME (-cpu max) QEMU 7.2 and the kernels of OpenBLAS 0.3.34 for it give wrong
# numbers together; which of the two is wrong has not been found out. NVIDIA's Grace has SVE and no SME.
for cpu in neoverse-n1 max,sme=off; do
  emulated=("$qemu" -cpu $cpu -L "$work/root" -E "PYTHONHOME=$work/root/usr" -E PYTHONDONTWRITEBYTECODE=1
    -E "PYTHONPATH=$work/site:$work/root/usr/lib/python3/dist-packages"
    -E "LD_LIBRARY_PATH=$libraries/blas:$libraries/lapack")
  "${emulated[@]}" "$(realpath "$work/root/usr/bin/python3")" tests/install/wheel.py "$work/site" || fail "Python"
  export LASP_ZIG=$PWD/build/wheel/tools/bin/python-zig
  if [ -x "$LASP_ZIG" ]; then
    packaging/wheel/zig-cc -target aarch64-linux-gnu.2.28 -O1 -std=c99 examples/c/attention.c -I"$work/site/liblasp/include" \
      "$work/site/liblasp/lib/liblasp.so.2" "$(echo "$work"/site/liblasp.libs/libscipy_openblas*)" -lpthread -lm -o "$work/attention"
    "$qemu" -cpu $cpu -L "$work/root" -E "LD_LIBRARY_PATH=$work/site/liblasp/lib:$work/site/liblasp.libs" "$work/attention" || fail "C"
  fi
done

export LASP_AARCH64_ROOT=$work/root LASP_TEST_QUICK=1 OPENBLAS_NUM_THREADS=1
cmake -S . -B "$work/build" -G Ninja --toolchain tests/long/aarch64.cmake -DCMAKE_BUILD_TYPE=Release -DLASP_PRECOMPILE=ON \
  -DLASP_WITH_CUDA=OFF -DLASP_WITH_MPI=OFF -DLASP_BUILD_BENCH=OFF > "$work/log" 2>&1 || { tail "$work/log"; fail "CMake"; }
cmake --build "$work/build" -j "${2:-1}" > "$work/log" 2>&1 || { tail -30 "$work/log"; fail "the tests were not built"; }
tests=$work/build/tests failed=0
ran() { # ran LIBRARIES PROGRAM ARGUMENT...
  local libraries=$1 program=$2 begin=$SECONDS
  shift 2
  "$qemu" -cpu max,sme=off -L "$work/root" -E "LD_LIBRARY_PATH=$libraries:$libraries/openblas-pthread" "$tests/$program" "$@" \
    > "$work/log" 2>&1 || { tail -30 "$work/log"; echo "FAILED: $program"; failed=1; }
  echo "$program: $(grep -E '^\[  PASSED' "$work/log" || tail -1 "$work/log"), $((SECONDS - begin)) s"
}
# Not ThreadsThatTheSystemDoesNotStart: QEMU keeps no limit on memory. Not Cycles: resident memory is QEMU's own too.
ran "$libraries" unit/unit --gtest_brief=1 --gtest_filter=-ThreadPool.ThreadsThatTheSystemDoesNotStartAreSaid
ran "$libraries" endurance/endurance --gtest_brief=1 --gtest_filter=-Cycles.*
for program in unit/unit_transport conformance/lasp_oracle_test fault/fault_injection; do
  ran "$libraries" $program --gtest_brief=1
done
of_wheel=$work/site/liblasp/lib:$work/site/liblasp.libs:$libraries
for program in abi/struct_test abi/bad_input fault/fault kill/kill_threads conformance/lasp_conformance; do
  ran "$of_wheel" $program --gtest_brief=1
done
ran "$of_wheel" differential/lasp_differential --seed 1 --count 30
[ $failed = 0 ] || fail "programs, above"
echo "$(basename "$wheel") computes under $("$qemu" --version | head -1)"
