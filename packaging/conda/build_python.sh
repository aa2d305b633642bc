#!/usr/bin/env bash
# rattler-build's step for the package liblasp-python, on top of the library.
set -euo pipefail
"$PYTHON" -m pip install . --no-deps --no-build-isolation -C cmake.define.LASP_PYTHON_SYSTEM_LIBRARY=ON \
  -C "cmake.define.CMAKE_PREFIX_PATH=$PREFIX"
