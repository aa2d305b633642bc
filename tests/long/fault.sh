#!/usr/bin/env bash
# Every kind of fault at every message and call, over groups of two to five, every schedule, both directions
# (tests/fault/injection_test.cpp), in full; then what checking messages costs.
#     tests/long/fault.sh BUILD_DIR
# Its output is kept as tests/long/results/fault.txt.
set -uo pipefail
program=$1/tests/fault/fault_injection
[ -x "$program" ] || { echo "$program was not built" >&2; exit 1; }
source=$(cd "$(dirname "$0")/../.." && pwd)
commit=$(git -C "$source" describe --always --dirty 2> /dev/null || echo unknown)
echo "fault_injection, LASP_FAULT_FULL=1, $(date -u '+%Y-%m-%d %H:%M') UTC, commit $commit"
failed=0
LASP_FAULT_FULL=1 "$program" --gtest_brief=1 --gtest_filter=-Verify.Cost || failed=1
LASP_FAULT_COST=1 "$program" --gtest_brief=1 --gtest_filter=Verify.Cost || failed=1
exit "$failed"
