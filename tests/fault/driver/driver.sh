#!/bin/sh
# A GPU is asked for where there is no driver, where the driver is too old, and where it finds no GPU: each is a status
# and a sentence that says which, for a C program and for lasp-info.     driver.sh CONTEXT LASP_INFO STUB OLD_STUB WORK_DIR
# The drivers are libcuda.c beside this, in place of the machine's own.
context=$1 info=$2 stub=$(dirname "$3") old=$(dirname "$4") work=$5
unset LASP_DRIVER_VERSION LASP_DRIVER_INIT
failed=0

# The sentence that is wanted, the folder of the driver, and its environment.
expect() {
  wanted=$1 path=$2
  shift 2
  got=$(env LD_LIBRARY_PATH="$path" "$@" "$context")
  [ "$got" = "202: $wanted" ] || { printf '%s: the context says\n  %s\nin place of\n  202: %s\n' "$*" "$got" "$wanted"; failed=1; }
  listed=$(env LD_LIBRARY_PATH="$path" "$@" "$info")
  printf '%s\n' "$listed" | grep -qF "  $wanted" || { printf '%s: lasp-info does not say\n  %s\n' "$*" "$wanted"; failed=1; }
}

# The loader takes this file for the driver, cannot load it and looks no further: as on a machine without one.
mkdir -p "$work"
: > "$work/libcuda.so.1"
expect "device = LASP_DEVICE_CUDA: no NVIDIA driver was found on this machine" "$work" A=1

none="device = LASP_DEVICE_CUDA: the NVIDIA driver finds no GPU for this process"
built=$("$info" | sed -nE 's/.*toolkit ([0-9]+\.[0-9]+).*/\1/p')
[ -n "$built" ] || { echo "lasp-info names no toolkit"; exit 1; }
number=$((${built%.*} * 1000 + ${built#*.} * 10))
older() { echo "device: the NVIDIA driver serves CUDA $1, which is older than this build's CUDA $built"; }
expect "$(older 10.2)" "$old" LASP_DRIVER_VERSION=10020
expect "$(older 11.4)" "$stub" LASP_DRIVER_VERSION=11040
expect "$(older 11.4)" "$stub" LASP_DRIVER_VERSION=11040 LASP_DRIVER_INIT=100
before=$((${built%.*} - 1))
expect "$(older $before.0)" "$stub" LASP_DRIVER_VERSION=${before}000
expect "$none" "$stub" LASP_DRIVER_VERSION=$number LASP_DRIVER_INIT=100
# The kernel's part of the driver and this library are of different releases, as after an upgrade without a restart.
expect "device = LASP_DEVICE_CUDA: cudaErrorSystemDriverMismatch (system has unsupported display driver / cuda driver combination)" \
  "$stub" LASP_DRIVER_VERSION=$number LASP_DRIVER_INIT=803
exit $failed
