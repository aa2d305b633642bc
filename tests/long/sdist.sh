#!/usr/bin/env bash
# The source distribution that a release has: pip builds liblasp from it into a fresh virtual environment, for this
# machine and without CUDA, as where no wheel fits; it computes. Needs a package index.
#     sdist.sh BUILD_DIR JOBS      LASP_PYTHON
set -euo pipefail
cd "$(dirname "$0")/../.."
skip() { echo "SKIPPED: $1"; exit 77; }
fail() { echo "FAILED: $*"; exit 1; }
unset LD_LIBRARY_PATH PYTHONPATH
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 CMAKE_BUILD_PARALLEL_LEVEL=${2:-1}
python=${LASP_PYTHON:-python3}
work=$(mktemp -d)
trap 'rm -rf --one-file-system "$work"' EXIT
packaging/wheel/build --sdist --out "$work" > "$work/log" 2>&1 || { tail -5 "$work/log"; fail "it cannot be made"; }
sdist=$(echo "$work"/liblasp-*.tar.gz)
"$python" -m venv "$work/venv"
"$work/venv/bin/pip" -q download --no-deps -d "$work/tools" 'scikit-build-core>=0.10' > "$work/log" 2>&1 ||
  skip "pip cannot have scikit-build-core here: $(tail -1 "$work/log")"
# From a folder of its own: what it needs and lacks must not be found in this clone.
cd "$work"
"$work/venv/bin/pip" -v install --no-cache-dir --no-binary liblasp "$sdist" -C cmake.define.LASP_WITH_CUDA=OFF > "$work/log" 2>&1 ||
  { tail -30 "$work/log"; fail "pip does not build it"; }
"$work/venv/bin/python" - << 'END' || fail "it does not compute"
import os
import sys

import numpy as np

import liblasp

home = os.path.dirname(os.path.realpath(liblasp.__file__))
assert home.startswith(os.path.realpath(sys.prefix)), home
assert os.path.exists(os.path.join(liblasp.get_include(), "lasp", "lasp.h")), liblasp.get_include()
assert not liblasp.build_info().has_cuda
x = np.ones((1, 3, 1, 8), np.float32)
with liblasp.Context() as context:
    o = context.plan(liblasp.Problem.like(x, x, x, scale=1.0)).forward(x, x, x)
assert (o[0, :, 0, 0] == [8, 16, 24]).all(), o
print(f"built from the source distribution: liblasp {liblasp.__version__}, {liblasp.build_info().blas.split(',')[0]}")
END
echo "$(basename "$sdist"): $(($(stat -c %s "$sdist") / 1000)) kB"
