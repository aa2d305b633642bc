#!/usr/bin/env bash
# Opens the site in a browser, at two widths, light and dark, and compares its picture of the schedules with the library.
#     tests/long/site.sh BUILD_DIR
set -euo pipefail
build=$1 root=$(cd "$(dirname "$0")/../.." && pwd)
"$root/docs/site/setup" --check
"$root/docs/site/build"
python3 "$root/tests/site/links.py" "$root/build/site"
"$build/tests/site/schedule_table" > "$root/build/site-table"
"$root/build/site-venv/bin/python" "$root/tests/site/browser.py" "$root/build/site" --table "$root/build/site-table"
