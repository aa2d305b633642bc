#!/usr/bin/env bash
# The soak of threads and, where this build has MPI, the soak of processes, side by side; with the same options.
#     soak.sh ENDURANCE_SOAK [ENDURANCE_SOAK_MPI SOAK_RANK MPIRUN] -- OPTION...
set -uo pipefail
threads=$1 mpi=()
shift
while [ "$1" != -- ]; do
  mpi+=("$1")
  shift
done
shift
log=$(mktemp)
trap 'rm -f "$log"' EXIT
failed=0 beside=
if [ ${#mpi[@]} != 0 ]; then
  "${mpi[@]}" "$@" > "$log" 2>&1 &
  beside=$!
else
  echo "no groups of processes: this build has no MPI transport"
fi
"$threads" "$@" || failed=1
if [ -n "$beside" ]; then
  wait "$beside" || failed=1
  cat "$log"
fi
exit $failed
