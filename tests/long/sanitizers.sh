#!/usr/bin/env bash
# The tests with AddressSanitizer and UndefinedBehaviorSanitizer, then with ThreadSanitizer, all of them and all of their
# own code; `make check-full` does so with a part (docs/internals/testing.md).
#     tests/long/sanitizers.sh BUILD_DIR [JOBS]
set -uo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
failed=0
for preset in asan tsan; do
  cmake -DSOURCE="$root" -DPRESET=$preset -DDIRECTORY="$1/tests/all-$preset" -DCORES="${2:-1}" \
    -DOPTIONS=-DLASP_SANITIZE_ALL=ON -P "$root/tests/sanitizers.cmake" || failed=1
done
exit $failed
