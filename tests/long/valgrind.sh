#!/usr/bin/env bash
# Memcheck over the programs that call the API, all of it (tests/valgrind.sh). The last results are in
# tests/long/results/valgrind.txt.
#     tests/long/valgrind.sh BUILD_DIR
set -uo pipefail
exec "$(dirname "$0")/../valgrind.sh" whole "$1"
