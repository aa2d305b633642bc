#!/usr/bin/env bash
# The binary interface against the committed description of it: nothing a compiled program relies on may change.
#     baseline.sh compare LIBRARY INCLUDE_DIR BASELINE      fails on an incompatible change
#     baseline.sh write   LIBRARY INCLUDE_DIR BASELINE      after a change on purpose (then raise LASP_ABI if released)
# The library must have been built with debug information in capi/ (LASP_BUILD_TESTS=ON does that).
set -euo pipefail
action=$1 library=$2 include_dir=$3 baseline=$4
skip() { echo "SKIPPED: $*"; exit 77; }
command -v abidw > /dev/null && command -v abidiff > /dev/null || skip "abidw and abidiff are not here (apt install abigail-tools)"
nm -D "$library" | grep -qE ' U __(asan|tsan)_init' && skip "the baseline describes a build without sanitizers"
readelf -S "$library" | grep -q '\.debug_info' || { echo "$library has no debug information"; exit 1; }

describe() {
  abidw --headers-dir "$include_dir" --drop-private-types --no-show-locs --no-corpus-path --no-comp-dir-path \
    "$library" | sed -E "/<dependency|<needed|<\/elf-needed>/d"
}
if [ "$action" = write ]; then
  describe > "$baseline"
  echo "wrote $baseline, $(wc -l < "$baseline") lines"
  exit
fi
now=$(mktemp --suffix=.abi)
trap 'rm -f "$now"' EXIT
describe > "$now"
grep -q "lasp_problem" "$now" || { echo "the description of $library lacks the public types"; exit 1; }
abidiff --no-added-syms "$baseline" "$now" || { echo "incompatible with $baseline (status $?)"; exit 1; }
echo "compatible with $(basename "$baseline")"
