#!/usr/bin/env bash
# The conformance table whole, over threads and over four MPI processes: every case by every schedule on every group.
# `make check-full` lets cases take turns (docs/internals/testing.md).
#     tests/long/conformance.sh BUILD_DIR [JOBS]
set -euo pipefail
LASP_TEST_WHOLE=1 ctest --test-dir "$1" -R '^conformance\.(threads|mpi4)' -j "${2:-1}" --output-on-failure --no-tests=error
