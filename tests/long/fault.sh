#!/usr/bin/env bash
# Every kind of fault at every message of plan creation and passes, over every schedule (tests/fault/injection_test.cpp);
# `make check` takes a part of them. Five minutes, mostly of waiting: four processes share the tests.
#     tests/long/fault.sh BUILD_DIR
# Its output is part of tests/long/results/fault.txt.
set -uo pipefail
program=$1/tests/fault/fault_injection processes=4 pids=() status=0
[ -x "$program" ] || { echo "$program was not built" >&2; exit 1; }
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
for ((i = 0; i < processes; ++i)); do
  LASP_FAULT_FULL=1 GTEST_TOTAL_SHARDS=$processes GTEST_SHARD_INDEX=$i "$program" --gtest_brief=1 \
    --gtest_filter=-Verify.Cost > "$logs/$i" 2>&1 &
  pids+=($!)
done
for ((i = 0; i < processes; ++i)); do
  wait "${pids[i]}" || status=$?
  cat "$logs/$i"
done
exit "$status"
