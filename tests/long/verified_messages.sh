#!/usr/bin/env bash
# What checking messages (verify_messages) costs: the checksum's speed, and passes with and without, by schedule and size
# of the state (tests/fault/verify_test.cpp). Two minutes on an idle machine.
#     tests/long/verified_messages.sh BUILD_DIR
# Its output is part of tests/long/results/fault.txt.
set -uo pipefail
program=$1/tests/fault/fault_injection
[ -x "$program" ] || { echo "$program was not built" >&2; exit 1; }
exec env LASP_FAULT_COST=1 "$program" --gtest_brief=1 --gtest_filter=Verify.Cost
