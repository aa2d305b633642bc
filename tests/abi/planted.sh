#!/usr/bin/env bash
# Every gate of the binary interface fails when a break is planted: in copies, so that nothing has to be restored.
#     planted.sh SOURCE_DIR LIBRARY STRUCT_TEST CC SONAME
set -uo pipefail
source=$1 library=$2 struct_test=$3 cc=$4 soname=$5
here=$source/tests/abi work=$(mktemp -d) failed=0
trap 'rm -rf "$work"' EXIT
header=$source/capi/include/lasp/lasp.h map=$source/capi/lasp.map

passes() {  # passes GATE COMMAND...: untouched, the gate must pass, or its failure below would prove nothing
  local gate=$1
  shift
  "$@" > "$work/log" 2>&1 || { echo "BROKEN: $gate fails without a break"; sed 's/^/    /' "$work/log"; failed=1; }
}
fails() {  # fails GATE BREAK COMMAND...
  local gate=$1 break=$2
  shift 2
  if bash -c '"$@"; exit $?' _ "$@" > "$work/log" 2>&1; then  # in a shell of its own, that reports a crash to the log
    echo "NOT NOTICED by $gate: $break"
    failed=1
  else
    echo "$gate notices: $break ($(grep -m1 . "$work/log" | cut -c1-90))"
  fi
}
planted() {  # planted SED_PROGRAM: a copy of the headers, changed; prints its include folder
  local copy
  copy=$(mktemp -d -p "$work")
  mkdir -p "$copy/lasp"
  sed "$1" "$header" > "$copy/lasp/lasp.h"
  cmp -s "$header" "$copy/lasp/lasp.h" && echo "planted nothing: $1" >&2
  echo "$copy"
}
layout_of() {  # layout_of INCLUDE_DIR
  "$cc" -std=c99 -Werror=incompatible-pointer-types -I "$1" "$source/bindings/layout/lasp_layout.c" -o "$work/layout" &&
    "$here/layout.sh" compare "$work/layout" "$here/layout.tsv"
}
shim() {  # shim NAME < C: a library that takes functions' places in struct_test
  "$cc" -shared -fPIC -I "$source/capi/include" -x c - -o "$work/$1.so"
}

# The table of exports
declares='s/^LASP_API const char \*lasp_last_error(void);/&\nLASP_API int32_t lasp_not_there(void);/'
passes exports "$here/exports.sh" "$header" "$map" "$library" "$soname"
fails exports "a function declared and not exported" "$here/exports.sh" "$(planted "$declares")/lasp/lasp.h" "$map" "$library" "$soname"
sed '/lasp_step;/d' "$map" > "$work/map"
fails exports "a function exported and not listed" "$here/exports.sh" "$header" "$work/map" "$library" "$soname"
fails exports "another SONAME" "$here/exports.sh" "$header" "$map" "$library" liblasp.so.999
passes links "$here/links.sh" "$source/capi/include" "$library" "$cc"
fails links "a function declared and not there" "$here/links.sh" "$(planted "$declares")" "$library" "$cc"

# The header's text
passes header "$here/header.sh" "$source/capi/include" "$cc" "${CXX:-c++}"
fails header "a header of C++" "$here/header.sh" "$(planted 's/#include <stddef.h>/&\n#include <cstdint>/')" "$cc" "${CXX:-c++}"
fails header "padding in a struct" "$here/header.sh" "$(planted 's/^  int64_t batch, token, head;/  int32_t first; int64_t batch, token, head;/')" "$cc" "${CXX:-c++}"

# Layout and constants
passes layout layout_of "$source/capi/include"
fails layout "two fields changed places" layout_of "$(planted 's/^  int32_t head_dim_k; /  int32_t head_dim_v_; /; s/^  int32_t head_dim_v; /  int32_t head_dim_k; /; s/head_dim_v_/head_dim_v/')"
fails layout "a constant has another value" layout_of "$(planted 's/LASP_ERROR_IN_USE = 106/LASP_ERROR_IN_USE = 107/')"
fails layout "a field has another type" layout_of "$(planted 's/^  int64_t tokens; /  int32_t tokens; int32_t gap;/')"
fails layout "an initialiser has another default" layout_of "$(planted 's/sizeof(lasp_problem), 1, 0, -1/sizeof(lasp_problem), 1, 0, 0/')"

# abidiff against the committed description
if command -v abidiff > /dev/null; then
  passes baseline "$here/baseline.sh" compare "$library" "$here/lasp.abi"
  # A name of a field is no part of the binary interface: that one is the layout gate's.
  sed "/<data-member.*'384'>/{N;/head_dim_v/{N;d}}" "$here/lasp.abi" > "$work/added.abi"
  fails baseline "a field that was not there" "$here/baseline.sh" compare "$library" "$work/added.abi"
  sed "s/name='lasp_step'/name='lasp_leap'/g; s/'lasp_step'/'lasp_leap'/g" "$here/lasp.abi" > "$work/removed.abi"
  fails baseline "a removed function" "$here/baseline.sh" compare "$library" "$work/removed.abi"
  cp "$library" "$work/stripped.so" && strip --strip-debug "$work/stripped.so"
  fails baseline "a library without debug information" "$here/baseline.sh" compare "$work/stripped.so" "$here/lasp.abi"
else
  echo "not planted: abidiff is not here"
fi

# The struct rules, by functions that take the library's place
passes struct_test "$struct_test"
shim init <<'C'
#include <lasp/lasp.h>
lasp_status lasp_problem_init(lasp_problem *p, size_t size) {
  static const lasp_problem init = LASP_PROBLEM_INIT;
  if (size == sizeof *p) { *p = init; p->batch = 2; }
  return LASP_OK;
}
C
fails struct_test "init function and macro differ" env LD_PRELOAD="$work/init.so" "$struct_test" --gtest_filter='Init.*'
shim beyond <<'C'
#include <string.h>
#include <lasp/lasp.h>
lasp_status lasp_get_build_info(lasp_build_info *info) {
  const size_t size = info->size;
  memset(info, 0, sizeof *info);
  info->size = size;
  return LASP_OK;
}
C
fails struct_test "a shorter struct written beyond its size" env LD_PRELOAD="$work/beyond.so" "$struct_test" --gtest_filter='OutputStructs.AreWrittenByTheCallersSize'
shim lenient <<'C'
#include <lasp/lasp.h>
lasp_status lasp_forward(lasp_plan *plan, const lasp_forward_args *args, lasp_stream stream) {
  (void)plan, (void)args, (void)stream;
  return LASP_OK;
}
C
fails struct_test "an unknown tail accepted" env LD_PRELOAD="$work/lenient.so" "$struct_test" --gtest_filter='InputStructs.LargerWithUnknownTailIsRefused'

# The old client
passes old_client "$here/old_client.sh" "$here/first" "$here/external" "$library" "$cc"
fails old_client "another ABI number" "$here/old_client.sh" "$(planted 's/define LASP_ABI 1$/define LASP_ABI 2/')" "$here/external" "$library" "$cc"

# Layers, hardening
passes layers "$here/layers.sh" "$source"
mkdir "$work/tree" && cp -r "$source"/{capi,src,kernels,bench} "$work/tree/"
echo '#include "../src/plan.h"' >> "$work/tree/kernels/launch.h"
fails layers "kernels/ sees src/" "$here/layers.sh" "$work/tree"
passes hardening "$here/hardening.sh" "$library"
echo 'int lasp_soft(int x) { return x; }' | "$cc" -shared -fPIC -fno-stack-protector -U_FORTIFY_SOURCE -Wl,-z,execstack,-z,lazy,-z,norelro -x c - -o "$work/soft.so"
fails hardening "a file built without" "$here/hardening.sh" "$work/soft.so"
exit $failed
