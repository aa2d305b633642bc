#!/usr/bin/env bash
# A manual page explains exactly the options that its tool's --help names, and is written without mistakes.
#     man.sh TOOL PAGE
set -euo pipefail
tool=$1 page=$2 failed=0
option='--[a-z][a-z0-9-]*'

named=$("$tool" --help | grep -oE -- "$option" | sort -u)
# An entry's heading is the line after .TP or .TQ.
explained=$(awk '/^\.T[PQ]/ { heading = 1; next } heading { print } { heading = 0 }' "$page" | sed 's/\\-/-/g' |
  grep -oE -- "$option" | sort -u)
if ! difference=$(diff <(printf '%s\n' "$named") <(printf '%s\n' "$explained")); then
  printf 'options of --help (<) and of %s (>) differ:\n%s\n' "$(basename "$page")" "$difference"
  failed=1
fi

if command -v groff > /dev/null; then
  complaints=$(groff -man -ww -z -Tutf8 "$page" 2>&1)
  [ -z "$complaints" ] || { echo "$complaints"; failed=1; }
else
  echo "not looked at by groff, which is not here"
fi
[ $failed = 0 ] && echo "$(wc -l <<< "$named") options, all explained"
exit $failed
