#!/bin/sh
# The site's model of the schedules beside the library's numbers, where node can run it.   model.sh SOURCE_DIR TABLE_PROGRAM
command -v node > /dev/null || { echo "SKIPPED: node is not here (apt: nodejs); tests/long/site.sh does it in a browser"; exit 77; }
table=$(mktemp)
trap 'rm -f "$table"' EXIT
"$2" > "$table" || exit 1
node "$1/tests/site/model.js" "$1" < "$table"
