#!/usr/bin/env bash
# Processes that are killed, stopped and paused, and threads that go wrong, over many seeds (tests/kill).
#     tests/long/kill.sh BUILD_DIR [JOBS]      LASP_KILL_RUNS=240 groups of processes, LASP_KILL_SEEDS=200 of each thread test
set -uo pipefail
build=$1 runs=${LASP_KILL_RUNS:-240}
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 LASP_KILL_SEEDS=${LASP_KILL_SEEDS:-200}
failed=0
"$build/tests/kill/kill_threads" --gtest_brief=1 || failed=1
if [ -x "$build/tests/kill/kill_driver" ]; then
  "$build/tests/kill/kill_driver" "$build/tests/kill/killed_peer" "${LASP_KILL_FIRST_SEED:-1}" "$runs" 2 || failed=1
else
  echo "SKIPPED: killed processes: this build has no MPI transport"
fi
exit "$failed"
