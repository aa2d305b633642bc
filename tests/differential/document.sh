#!/usr/bin/env bash
# The tables of docs/history/numerics.md are those of the long run that is kept: the same lines.
#     tests/differential/document.sh SOURCE_DIR
set -uo pipefail
tables() { grep -E '^\| (dtype|float32|bfloat16|float16) +\| (decay|none|head|scalar|channel) ' "$1"; }
document=$1/docs/history/numerics.md kept=$1/tests/long/results/differential.txt
[ "$(tables "$kept" | wc -l)" -ge 20 ] || { echo "$kept has no tables (lasp_differential --table)" >&2; exit 1; }
diff <(tables "$kept") <(tables "$document") || { echo "$document shows other numbers than $kept" >&2; exit 1; }
