#!/usr/bin/env bash
# No hot kernel keeps registers in memory, by the report that the assembler left beside each object file. Other
# kernels that do are listed.     spills.sh HOT_OBJECT_DIR [OTHER_OBJECT_DIR...]
set -euo pipefail
spilling() {  # spilling DIR: "bytes kernel" of each that spills
  find "$1" -name '*.ptxas' -print0 | xargs -0 -r awk '
    /Function properties for/ { kernel = $NF }
    /bytes spill stores/ && !/ 0 bytes spill stores, 0 bytes spill loads/ { sub(/^ +/, ""); print $0 ": " kernel }'
}
count() { find "$@" -name '*.ptxas' -exec cat {} + | grep -c 'Compiling entry function'; }

kernels=$(count "$1") || { echo "no report of a kernel below $1"; exit 1; }
hot=$(spilling "$1")
shift
for other in "$@"; do spilling "$other" | sed 's/^/not hot: /'; done
if [ -n "$hot" ]; then
  echo "hot kernels that spill:"
  echo "$hot"
  exit 1
fi
echo "$kernels hot kernels, none spills"
