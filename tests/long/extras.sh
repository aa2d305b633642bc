#!/usr/bin/env bash
# The extras of the wheel that `make wheel` made: pip installs [torch], [jax] and [mpi] into a fresh virtual environment
# each, and each computes. MPI is this build's liblasp_mpi. Needs a package index; downloads what PyTorch needs, which
# pip's own settings can limit (PIP_CONSTRAINT).     extras.sh BUILD_DIR      LASP_WHEEL, LASP_PYTHON, LASP_EXTRAS
set -euo pipefail
build=$(cd "$1" && pwd)
cd "$(dirname "$0")/../.."
skip() { echo "SKIPPED: $1"; exit 77; }
fail() { echo "FAILED: $*"; exit 1; }
unset LD_LIBRARY_PATH PYTHONPATH LASP_MPI_LIBRARY
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 PYTHONDONTWRITEBYTECODE=1
wheel=${LASP_WHEEL:-$(find build/wheels -name "liblasp-*_$(uname -m).whl" 2> /dev/null | head -1)}
[ -n "$wheel" ] || skip "there is no wheel; make wheel makes one"
work=$(mktemp -d)
trap 'rm -rf --one-file-system "$work"' EXIT
tried=0
for extra in ${LASP_EXTRAS:-torch jax mpi}; do
  run=()
  if [ "$extra" = mpi ]; then
    export LASP_MPI_LIBRARY=$build/capi/liblasp_mpi.so
    [ -e "$LASP_MPI_LIBRARY" ] && command -v mpirun > /dev/null || { echo "SKIPPED: [mpi]: this build has no MPI"; continue; }
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
    run=(mpirun -n 2)
  fi
  "${LASP_PYTHON:-python3}" -m venv "$work/$extra"
  "$work/$extra/bin/python" -m pip -q install "$wheel[$extra]" > "$work/log" 2>&1 || {
    grep -q "No matching distribution\|Could not find a version" "$work/log" &&
      { echo "SKIPPED: [$extra]: pip cannot have it here: $(grep -m 1 "No matching\|Could not find" "$work/log")"; continue; }
    tail -5 "$work/log"
    fail "[$extra] cannot be installed"
  }
  "${run[@]}" "$work/$extra/bin/python" tests/install/extras.py "$extra" || fail "[$extra]"
  tried=$((tried + 1))
  rm -rf --one-file-system "${work:?}/$extra"
done
[ $tried -gt 0 ] || skip "no extra could be tried"
