#!/usr/bin/env bash
# Ten million executions of the fuzzers, from the committed corpus.     fuzz.sh BUILD_DIR
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
exec "$root/tests/fuzz/run.sh" "$root" "$1/../fuzz" --runs "${LASP_FUZZ_RUNS:-10000000}"
