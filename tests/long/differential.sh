#!/usr/bin/env bash
# The differential fuzz (tests/differential) over thousands of random problems, of another seed than `make check`'s.
#     tests/long/differential.sh BUILD_DIR      LASP_DIFFERENTIAL_SEED=2, LASP_DIFFERENTIAL_COUNT=8000,
#                                               LASP_DIFFERENTIAL_SECONDS: stop after so many
# Its output is kept as tests/long/results/differential.txt, and its tables are those of docs/history/numerics.md
# (tests/differential/document.sh).
set -uo pipefail
build=$1 seed=${LASP_DIFFERENTIAL_SEED:-2} count=${LASP_DIFFERENTIAL_COUNT:-8000} seconds=${LASP_DIFFERENTIAL_SECONDS:-0}
program=$build/tests/differential/lasp_differential
[ -x "$program" ] || { echo "$program was not built" >&2; exit 1; }
source=$(cd "$(dirname "$0")/../.." && pwd)
commit=$(git -C "$source" describe --always --dirty 2> /dev/null || echo unknown)
echo "lasp_differential --seed $seed --count $count --table, $(date -u '+%Y-%m-%d %H:%M') UTC, commit $commit"
"$program" --seed "$seed" --count "$count" --seconds "$seconds" --table
