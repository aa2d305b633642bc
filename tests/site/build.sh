#!/bin/sh
# Builds the site, and follows its links.       build.sh SOURCE_DIR
set -eu
"$1/docs/site/setup"
"$1/docs/site/build"
python3 "$1/tests/site/links.py" "$1/build/site"
