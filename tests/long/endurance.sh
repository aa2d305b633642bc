#!/usr/bin/env bash
# 10,000 cycles of every handle with flat memory, then an hour of training steps by groups that come and go
# (tests/endurance).
#     tests/long/endurance.sh BUILD_DIR [JOBS]      LASP_CYCLES=10000 LASP_SOAK_MINUTES=60 LASP_SOAK_SEED=20261121
set -uo pipefail
build=$1 failed=0
LASP_CYCLES=${LASP_CYCLES:-10000} "$build/tests/endurance/endurance" --gtest_filter='Cycles.*' || failed=1
"$build/tests/endurance/endurance_soak" --minutes "${LASP_SOAK_MINUTES:-60}" --seed "${LASP_SOAK_SEED:-20261121}" \
  --log-every 60 || failed=1
exit "$failed"
