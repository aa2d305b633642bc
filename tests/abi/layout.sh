#!/usr/bin/env bash
# Sizes, offsets, types and constants of everything public against the committed table, which lasp-layout printed.
#     layout.sh compare PROGRAM TABLE      fails on any difference
#     layout.sh write   PROGRAM TABLE      after a change on purpose (`make interface`)
set -euo pipefail
action=$1 program=$2 table=$3
if [ "$action" = write ]; then
  "$program" --tsv > "$table"
  echo "wrote $table, $(wc -l < "$table") lines"
  exit
fi
diff -u "$table" <("$program" --tsv) || { echo "the header no longer means what $(basename "$table") says"; exit 1; }
echo "$(wc -l < "$table") lines, as committed"
