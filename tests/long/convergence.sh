#!/usr/bin/env bash
# Loss curves of one rank and of 2 and 4 under DDP, FSDP2, ZeRO and, where it is installed, DeepSpeed: 400 steps each,
# within what float32 rounding explains (bench/convergence.py). Seven minutes on two cores, 13 with DeepSpeed.
#     tests/long/convergence.sh BUILD_DIR      LASP_CONVERGENCE_STEPS=400; LASP_TORCH_VENV, see torch-setup
# Its last results are rows of bench/results/convergence.csv; docs/reference/convergence.md shows them and their figure.
set -uo pipefail
source=$(cd "$(dirname "$0")/../.." && pwd)
package=$1/bindings/python/package
[ -d "$package" ] || { echo "SKIPPED: this build has no Python package"; exit 77; }
"$source/bindings/python/torch-setup" || exit $?
python=${LASP_TORCH_VENV:-$source/build/torch-venv}/bin/python
exec env PYTHONPATH="$package" "$python" "$source/bench/convergence.py" \
  --steps "${LASP_CONVERGENCE_STEPS:-400}" --json "$1/convergence.json"
