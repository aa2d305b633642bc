#!/usr/bin/env bash
# A model recalls what it saw 64K tokens back, over four ranks and in segments of time, and only guesses it with either
# cut (bindings/python/tests/test_torch_recall.py). Three minutes on two cores; the last results are in
# tests/long/results/recall.txt.
#     tests/long/recall.sh BUILD_DIR      LASP_RECALL='options of examples/pytorch/recall.py', LASP_RECALL_RANKS=4;
#                                         LASP_TORCH_VENV, see torch-setup
set -uo pipefail
build=$(cd "$1" && pwd)
source=$(cd "$(dirname "$0")/../.." && pwd)
package=$build/bindings/python/package
[ -d "$package" ] || { echo "SKIPPED: this build has no Python package"; exit 77; }
"$source/bindings/python/torch-setup" || exit $?
export LASP_RECALL=${LASP_RECALL:-"--tokens 64K --segment 16K --evaluate 32"} LASP_RECALL_RANKS=${LASP_RECALL_RANKS:-4}
exec "$source/bindings/python/torch-tests" "$package" test_torch_recall.py -s
