#!/usr/bin/env bash
# No hot kernel keeps registers in memory, by the report that the assembler left beside each object file, but for those in
# spills.txt beside this; and in none do products of tensor cores (wgmma) wait for each other, for want of registers or
# because of a branch. Other kernels that spill are listed.     spills.sh HOT_OBJECT_DIR [OTHER_OBJECT_DIR...]
set -euo pipefail
known=$(dirname "$0")/spills.txt
spilling() {  # spilling DIR: "bytes kernel" of each that spills
  find "$1" -name '*.ptxas' -print0 | xargs -0 -r awk '
    /Function properties for/ { kernel = $NF }
    /bytes spill stores/ && !/ 0 bytes spill stores, 0 bytes spill loads/ { sub(/^ +/, ""); print $0 ": " kernel }'
}
count() { find "$@" -name '*.ptxas' -exec cat {} + | grep -c 'Compiling entry function'; }
unknown() {  # of what spilling says, what spills.txt does not allow
  awk -v known="$known" '
    BEGIN { while ((getline line < known) > 0) if (line !~ /^#/) { split(line, part, " "); most[part[2]] = part[1] } }
    {
      allowed = 0
      for (pattern in most) if ($NF ~ pattern && $5 <= most[pattern] && $9 <= most[pattern]) allowed = 1
      if (!allowed) print
    }'
}

serialized() {  # serialized DIR: the sentences that say so
  find "$1" -name '*.ptxas' -exec grep -h 'wgmma.*instructions are serialized' {} + || true
}

kernels=$(count "$1") || { echo "no report of a kernel below $1"; exit 1; }
hot=$(spilling "$1")
waiting=$(serialized "$1")
shift
for other in "$@"; do spilling "$other" | sed 's/^/not hot: /'; done
wrong=$(unknown <<< "$hot")
if [ -n "${wrong//[[:space:]]/}" ]; then
  echo "hot kernels that spill:"
  echo "$wrong"
  exit 1
fi
if [ -n "$waiting" ]; then
  echo "hot kernels whose products wait for each other:"
  echo "$waiting"
  exit 1
fi
echo "$kernels hot kernels; $(grep -c . <<< "$hot" || true) spill, as spills.txt says"
