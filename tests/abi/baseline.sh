#!/usr/bin/env bash
# The binary interface against the committed description of it: nothing a compiled program relies on may change.
#     baseline.sh compare LIBRARY BASELINE      fails on an incompatible change
#     baseline.sh write   LIBRARY BASELINE      after a change on purpose (then raise LASP_ABI if released)
# The library must have debug information, in itself or in the file that a Release build splits off and that lies beside.
set -euo pipefail
action=$1 library=$2 baseline=$3
skip() { echo "SKIPPED: $*"; exit 77; }
command -v abidw > /dev/null && command -v abidiff > /dev/null || skip "abidw and abidiff are not here (apt install abigail-tools)"
[[ $(readelf -d "$library") =~ lib(asan|tsan)\.so ]] && skip "the baseline describes a build without sanitizers"
[[ $(readelf -S "$library") =~ \.debug_info ]] || [ -e "$(realpath "$library").debug" ] || { echo "$library has no debug information"; exit 1; }

# Only what the header declares: the library's own types behind the handles may change as they like.
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
printf '[suppress_type]\n  source_location_not_regexp = .*/lasp\\\\.h$\n  drop = yes\n' > "$scratch/private"
describe() {
  abidw --suppressions "$scratch/private" --exported-interfaces-only --no-show-locs --no-corpus-path \
    --no-comp-dir-path "$library" | sed -E "/<dependency|elf-needed>/d; s, path='[^']*/(capi|src)/, path='\1/,"
}
if [ "$action" = write ]; then
  describe > "$baseline"
  echo "wrote $baseline, $(wc -l < "$baseline") lines"
  exit
fi
now=$scratch/now.abi
describe > "$now"
grep -q "name='lasp_problem'" "$now" || { echo "the description of $library lacks the public types"; exit 1; }
abidiff --no-added-syms "$baseline" "$now" || { echo "incompatible with $baseline (status $?)"; exit 1; }
echo "compatible with $(basename "$baseline")"
