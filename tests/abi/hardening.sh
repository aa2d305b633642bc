#!/usr/bin/env bash
# What the linker and compiler were asked for against attacks is in the built file: read-only relocations, bound at
# load, no executable stack, stack protector, checked string functions, no relative search path.
#     hardening.sh LIBRARY
set -euo pipefail
library=$1 failed=0
demand() {  # demand WHAT COMMAND...
  local what=$1
  shift
  if "$@" > /dev/null; then echo "ok: $what"; else echo "MISSING: $what"; failed=1; fi
}
headers=$(readelf -lW "$library") dynamic=$(readelf -dW "$library") symbols=$(nm -D --undefined-only "$library")
no_relative_path() { ! grep -E '\((RPATH|RUNPATH)\)' <<< "$dynamic" | grep -vqE '\[(/[^:]*(:/[^:]*)*|\$ORIGIN[^:]*)?\]'; }
demand "GNU_RELRO" grep -q GNU_RELRO <<< "$headers"
demand "BIND_NOW" grep -qE 'BIND_NOW|FLAGS_1.*NOW' <<< "$dynamic"
demand "GNU_STACK without E" grep -qE 'GNU_STACK.* RW ' <<< "$headers"
demand "no text relocations" bash -c '! grep -q TEXTREL <<< "$1"' _ "$dynamic"
demand "stack protector" grep -q __stack_chk_fail <<< "$symbols"
demand "no relative RPATH or RUNPATH" no_relative_path
if grep -qE 'lib(asan|tsan)' <<< "$dynamic"; then
  echo "not looked for under a sanitizer: FORTIFY"
else
  demand "FORTIFY (a checked libc function)" grep -qE '__(mem|str|sn|vsn|f|v)[a-z]*_chk' <<< "$symbols"
fi
exit $failed
