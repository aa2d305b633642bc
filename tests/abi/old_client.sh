#!/usr/bin/env bash
# A program compiled against the first release's header, kept in first/, runs with today's library.
#     old_client.sh FIRST_INCLUDE_DIR SOURCE_DIR LIBRARY CC
set -euo pipefail
first=$1 source=$2 library=$3 cc=$4
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$cc" -std=c99 -pedantic -Wall -Wextra -Werror -I "$first" "$source/attend.c" "$source/naive.c" "$library" \
  -Wl,-rpath,"$(dirname "$library")" -pthread -lm -o "$work/attend"
"$work/attend"
