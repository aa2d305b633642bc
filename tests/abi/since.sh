#!/usr/bin/env bash
# The comment before each function of a public header ends with the version that it exists since. Declarations that
# follow each other share one.     since.sh HEADER...
set -euo pipefail
status=0
for header in "$@"; do
  version=$(sed -nE 's/^#define LASP_VERSION_(MAJOR|MINOR) ([0-9]+)$/\2/p' "$(dirname "$header")/lasp.h" | paste -sd.)
  awk -v header="$header" -v version="$version" '
    function later(a, b,   x, y) { split(a, x, "."); split(b, y, "."); return x[1] + 0 > y[1] + 0 || (x[1] == y[1] && x[2] + 0 > y[2] + 0) }
    /^\/\*/ { comment = ""; inside = 1 }
    inside { comment = comment "\n" $0; if (/\*\/$/) inside = 0; next }
    /^(LASP_API lasp_status|LASP_API const)/ {
      match($0, /lasp_[a-z_]+\(/); name = substr($0, RSTART, RLENGTH - 1)
      if (name == "") { print header ":" FNR ": a function without a name on its first line"; bad = 1; next }
      ++functions
      if (!match(comment, /Since [0-9]+\.[0-9]+\. \*\/$/)) { print header ":" FNR ": " name " does not say since when it exists"; bad = 1; next }
      since = substr(comment, RSTART + 6, RLENGTH - 10)
      if (later(since, version)) { print header ":" FNR ": " name " exists since " since ", and this is " version; bad = 1 }
      next
    }
    /^ .*\);$/ { next }  # the rest of a declaration
    { comment = "" }
    END {
      if (functions == 0) { print header ": no function was found"; bad = 1 }
      if (!bad) print header ": " functions " functions say since when they exist"
      exit bad
    }' "$header" || status=1
done
exit $status
