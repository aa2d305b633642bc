#!/usr/bin/env bash
# Plants each mistake of tests/planted in turn, and says which test finds it: at least 95% of them, by a failed assertion
# and not by a hang or a crash. One to two hours on two cores.
#     tests/long/planted.sh BUILD_DIR [JOBS]      LASP_PLANTED_ONLY=PATTERN, as the program's --only
# The trees that it builds lie in BUILD_DIR/../planted. Its table is kept as tests/long/results/planted.txt.
set -uo pipefail
source=$(cd "$(dirname "$0")/../.." && pwd)
exec "$source/tests/planted/run" --build "$1/../planted" --jobs "${2:-1}" --only "${LASP_PLANTED_ONLY:-.}"
