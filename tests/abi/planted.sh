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
fails() {  # fails GATE BREAK PATTERN COMMAND...: for the reason planted, which a line of its output names
  local gate=$1 break=$2 pattern=$3 status=0
  shift 3
  # In a subshell, which reports a crash to the log.
  ("$@"; exit $?) > "$work/log" 2>&1 || status=$?
  if [ $status = 0 ]; then
    echo "NOT NOTICED by $gate: $break"
    failed=1
  elif ! grep -qE -- "$pattern" "$work/log" && ! { [ "$pattern" = crash ] && [ $status -gt 128 ]; }; then
    echo "FAILED FOR ANOTHER REASON: $gate, $break (looked for: $pattern)"
    sed 's/^/    /' "$work/log" | head -20
    failed=1
  else
    local line
    line=$(grep -m1 -E -- "$pattern" "$work/log" || echo "status $status")
    echo "$gate notices: $break (${line:0:90})"
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
  "$cc" -shared -fPIC -I "$source/capi/include" -I "$work" -x c - -o "$work/$1.so" -ldl
}

# The table of exports
declares='s/^LASP_API const char \*lasp_last_error(void);/&\nLASP_API int32_t lasp_not_there(void);/'
passes exports "$here/exports.sh" "$header" "$map" "$library" "$soname"
fails exports "a function declared and not exported" 'lasp_not_there' "$here/exports.sh" "$(planted "$declares")/lasp/lasp.h" "$map" "$library" "$soname"
sed '/lasp_step;/d' "$map" > "$work/map"
fails exports "a function exported and not listed" 'lasp_step' "$here/exports.sh" "$header" "$work/map" "$library" "$soname"
fails exports "another SONAME" 'SONAME is not' "$here/exports.sh" "$header" "$map" "$library" liblasp.so.999
passes links "$here/links.sh" "$source/capi/include" "$library" "$cc"
fails links "a function declared and not there" 'undefined reference to .lasp_not_there' "$here/links.sh" "$(planted "$declares")" "$library" "$cc"

# The header's text
passes header "$here/header.sh" "$source/capi/include" "$cc" "${CXX:-c++}"
passes since "$here/since.sh" "$source/capi/include/lasp/lasp.h"
fails since "a function of no version" 'lasp_step does not say' "$here/since.sh" "$(planted '/Since 0.1/{N; s/ Since 0.1\.\(.*\n.* lasp_step(\)/\1/}')/lasp/lasp.h"
fails since "a function of a later version" 'lasp_halo_destroy exists since 9.9' "$here/since.sh" "$(planted '/Since 0.2/{N; s/Since 0.2\(.*\n.* lasp_halo_destroy(\)/Since 9.9\1/}')/lasp/lasp.h"
fails header "a header of C++" 'cstdint' "$here/header.sh" "$(planted 's/#include <stddef.h>/&\n#include <cstdint>/')" "$cc" "${CXX:-c++}"
fails header "padding in a struct" 'padd' "$here/header.sh" "$(planted 's/^  int64_t batch, token, head;/  int32_t first; int64_t batch, token, head;/')" "$cc" "${CXX:-c++}"

# Layout and constants
passes layout layout_of "$source/capi/include"
fails layout "two fields changed places" '^[+-]field.lasp_problem.head_dim_[kv]' layout_of "$(planted 's/^  int32_t head_dim_k; /  int32_t head_dim_v_; /; s/^  int32_t head_dim_v; /  int32_t head_dim_k; /; s/head_dim_v_/head_dim_v/')"
fails layout "a constant has another value" '^[+-].*LASP_ERROR_IN_USE.*107' layout_of "$(planted 's/LASP_ERROR_IN_USE = 106/LASP_ERROR_IN_USE = 107/')"
fails layout "a field has another type" 'incompatible pointer type' layout_of "$(planted 's/^  int64_t tokens; /  double tokens;/')"
fails layout "an initialiser has another default" '^[+-]struct.lasp_problem' layout_of "$(planted 's/sizeof(lasp_problem), 1, 0, 1/sizeof(lasp_problem), 1, 1, 1/')"

# abidiff against the committed description
if command -v abidiff > /dev/null; then
  passes baseline "$here/baseline.sh" compare "$library" "$here/lasp.abi"
  # A name of a field is no part of the binary interface: that one is the layout gate's.
  sed "/<data-member.*'320'>/{N;/head_dim_v/{N;d}}" "$here/lasp.abi" > "$work/added.abi"
  fails baseline "a field that was not there" 'head_dim_v' "$here/baseline.sh" compare "$library" "$work/added.abi"
  sed "s/name='lasp_step'/name='lasp_leap'/g; s/'lasp_step'/'lasp_leap'/g" "$here/lasp.abi" > "$work/removed.abi"
  fails baseline "a removed function" 'lasp_leap' "$here/baseline.sh" compare "$library" "$work/removed.abi"
  cp "$library" "$work/stripped.so" && strip --strip-debug "$work/stripped.so"
  fails baseline "a library without debug information" 'no debug information' "$here/baseline.sh" compare "$work/stripped.so" "$here/lasp.abi"
  objcopy --only-keep-debug "$work/stripped.so" "$work/stripped.so.debug"
  fails baseline "debug information without types" 'lacks the public types' "$here/baseline.sh" compare "$work/stripped.so" "$here/lasp.abi"
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
fails struct_test "init function and macro differ" 'FAILED.*Init.FunctionEqualsMacroByteForByte' env LD_PRELOAD="$work/init.so" "$struct_test" --gtest_filter='Init.*'
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
fails struct_test "a shorter struct written beyond its size" 'crash' env LD_PRELOAD="$work/beyond.so" "$struct_test" --gtest_filter='OutputStructs.AreWrittenByTheCallersSize'
cat > "$work/next.h" <<'C'
#define _GNU_SOURCE
#include <dlfcn.h>
#include <lasp/lasp.h>
typedef struct { lasp_problem first; char later[64]; } grown_problem; /* of a later library */
static lasp_status next_plan_create(lasp_context *context, const lasp_problem *problem, lasp_plan **plan) {
  lasp_status (*next)(lasp_context *, const lasp_problem *, lasp_plan **);
  *(void **)&next = dlsym(RTLD_NEXT, "lasp_plan_create");
  return next(context, problem, plan);
}
C
shim greedy <<'C'
#include "next.h"
lasp_status lasp_plan_create(lasp_context *context, const lasp_problem *problem, lasp_plan **plan) {
  const volatile grown_problem mine = *(const grown_problem *)problem;
  (void)mine;
  return next_plan_create(context, problem, plan);
}
C
fails struct_test "a shorter struct read beyond its size" crash env LD_PRELOAD="$work/greedy.so" "$struct_test" --gtest_filter='InputStructs.OfTheFirstHeadersSizeAreAccepted'
shim strict <<'C'
#include "next.h"
lasp_status lasp_plan_create(lasp_context *context, const lasp_problem *problem, lasp_plan **plan) {
  return problem->size < sizeof(grown_problem) ? LASP_ERROR_INVALID_STRUCT : next_plan_create(context, problem, plan);
}
C
fails struct_test "the first header's struct refused" 'FAILED.*OfTheFirstHeadersSize' env LD_PRELOAD="$work/strict.so" "$struct_test" --gtest_filter='InputStructs.OfTheFirstHeadersSizeAreAccepted'
shim lenient <<'C'
#include <lasp/lasp.h>
lasp_status lasp_forward(lasp_plan *plan, const lasp_forward_args *args, lasp_stream stream) {
  (void)plan, (void)args, (void)stream;
  return LASP_OK;
}
C
fails struct_test "an unknown tail accepted" 'FAILED.*LargerWithUnknownTailIsRefused' env LD_PRELOAD="$work/lenient.so" "$struct_test" --gtest_filter='InputStructs.LargerWithUnknownTailIsRefused'

# The old client
passes old_client "$here/old_client.sh" "$here/first" "$here/external" "$library" "$cc"
fails old_client "another ABI number" 'ABI_MISMATCH' "$here/old_client.sh" "$(planted 's/define LASP_ABI 2$/define LASP_ABI 3/')" "$here/external" "$library" "$cc"
fails old_client "the first header's struct refused" 'INVALID_STRUCT|status' env LD_PRELOAD="$work/strict.so" "$here/old_client.sh" "$here/first" "$here/external" "$library" "$cc"

# Layers, hardening
passes layers "$here/layers.sh" "$source"
mkdir "$work/tree" && cp -r "$source"/{capi,src,kernels,bench} "$work/tree/"
echo '#include "../src/engine/plan.h"' >> "$work/tree/kernels/launch.h"
fails layers "kernels/ sees src/" 'kernels may include neither' "$here/layers.sh" "$work/tree"
passes hardening "$here/hardening.sh" "$library"
echo 'int lasp_soft(int x) { return x; }' | "$cc" -shared -fPIC -fno-stack-protector -U_FORTIFY_SOURCE -Wl,-z,execstack,-z,lazy,-z,norelro -x c - -o "$work/soft.so"
fails hardening "a file built without" 'MISSING: GNU_RELRO' "$here/hardening.sh" "$work/soft.so"
exit $failed
