#!/usr/bin/env bash
# 10,000 cycles of every handle with flat memory, then an hour of training steps by groups of threads and of MPI
# processes that come and go (tests/endurance). The last results are in tests/long/results/endurance.txt.
#     tests/long/endurance.sh BUILD_DIR [JOBS]      LASP_CYCLES=10000 LASP_SOAK_MINUTES=60 LASP_SOAK_SEED=20261121 LASP_SOAK_LOAD=0
set -uo pipefail
build=$1 failed=0 tests=$1/tests/endurance
source=$(cd "$(dirname "$0")/../.." && pwd)
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
LASP_CYCLES=${LASP_CYCLES:-10000} "$tests/endurance" --gtest_filter='Cycles.*' || failed=1
mpi=()
[ -x "$tests/endurance_soak_mpi" ] && mpi=("$tests/endurance_soak_mpi" "$tests/soak_rank" mpirun)
"$source/tests/endurance/soak.sh" "$tests/endurance_soak" "${mpi[@]}" -- --minutes "${LASP_SOAK_MINUTES:-60}" \
  --seed "${LASP_SOAK_SEED:-20261121}" --load "${LASP_SOAK_LOAD:-0}" --log-every 60 || failed=1
exit "$failed"
