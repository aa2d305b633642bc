#!/usr/bin/env bash
# Four million tokens under decays near 1: no tensor drifts from float64 (tests/conformance/drift_test.cpp). It takes
# 12 minutes and 9 GB of memory.
#     tests/long/drift.sh BUILD_DIR      LASP_TEST_DRIFT_TOKENS=4000000
set -uo pipefail
program=$1/tests/conformance/lasp_conformance
[ -x "$program" ] || { echo "$program was not built" >&2; exit 1; }
exec env LASP_TEST_DRIFT_TOKENS="${LASP_TEST_DRIFT_TOKENS:-4000000}" "$program" --gtest_filter='*Drift*'
