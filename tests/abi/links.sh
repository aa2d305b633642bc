#!/usr/bin/env bash
# A C program that takes the address of every function the header declares links against the library and runs.
#     links.sh INCLUDE_DIR LIBRARY CC
set -euo pipefail
include_dir=$1 library=$2 cc=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

mapfile -t functions < <(grep -oE '^LASP_API [^(;]*\(' "$include_dir/lasp/lasp.h" | grep -oE '[a-z0-9_]+\($' | tr -d '(')
[ ${#functions[@]} -gt 0 ] || { echo "found no declaration"; exit 1; }
{
  echo '#include <stdio.h>'
  echo '#include <lasp/lasp.h>'
  echo 'static const lasp_function functions[] = {'
  printf '  (lasp_function)%s,\n' "${functions[@]}"
  echo '};'
  echo 'int main(void) {'
  echo '  size_t i, count = sizeof functions / sizeof functions[0], found = 0;'
  echo '  for (i = 0; i < count; ++i) found += functions[i] != 0;'
  echo '  printf("%zu of %zu functions link from C\n", found, count);'
  echo '  return found != count;'
  echo '}'
} > "$work/links.c"
"$cc" -std=c99 -pedantic -Wall -Wextra -Werror -I "$include_dir" "$work/links.c" "$library" \
  -Wl,-rpath,"$(dirname "$library")" -o "$work/links"
"$work/links"
