#!/usr/bin/env bash
# What a release holds beside its packages, in a clone with tags of its own: the report on the binary interface, the
# checksums, a bill of materials that SPDX allows, the same source archive twice. Needs git, abidiff, a package index.
#     release.sh SOURCE WORK
set -euo pipefail
source=$1 work=$2
skip() { echo "SKIPPED: $1"; exit 77; }
fail() { echo "FAILED: $*"; exit 1; }
command -v abidiff > /dev/null || skip "abidiff is not here (apt install abigail-tools)"
git -C "$source" rev-parse -q --verify HEAD > /dev/null || skip "$source is not a git clone"
"$source/scripts/own-folder" "$work"
git clone -q --no-tags "file://$(realpath "$source")" "$work/clone"
cd "$work/clone"
git config user.name tests
git config user.email tests@localhost
release() { # release OUT: the report is then OUT/ABI.txt
  packaging/release/build --cpu --only archive --out "$1" > log 2>&1 || {
    [ -e build/release-tools/ready ] || skip "pip cannot have spdx-tools here: $(tail -1 log)"
    tail -20 log
    fail "$1: no release"
  }
  grep -q "two builds gave the same bytes" log || fail "$1: the builds were not compared"
}
says() { grep -qF "$2" "$1/ABI.txt" || { cat "$1/ABI.txt"; fail "$1/ABI.txt does not say: $2"; }; }
release first
says first "There is no earlier release"
(cd first && sha256sum --quiet -c SHA256SUMS) || fail "checksums"
[ -s first/CHANGES.md ] || fail "the version has no part of CHANGELOG.md"
build/release-tools/bin/pyspdxtools -i first/*.spdx.json || fail "the bill of materials"

# CONTRIBUTING.md tags a release before its files are made: that tag is not the last release's.
version=$(sed -nE 's/^#define LASP_VERSION_(MAJOR|MINOR|PATCH) ([0-9]+)$/\2/p' capi/include/lasp/lasp.h | paste -sd.)
git tag v0.0.1
git tag "v$version"
release same
says same "The binary interface is that of v0.0.1."

# A release that had one function more, and a later one without it.
python3 - << 'END'
import re
path = "tests/abi/lasp.abi"
text = open(path, encoding="utf-8").read()
name = "lasp_comm_create_self"
assert text.count(f" name='{name}'") == 2, name  # the symbol and the function
lines = [line for line in text.splitlines(True) if not re.search(f"<elf-symbol name='{name}'", line)]
text = re.sub(rf"    <function-decl name='{name}'.*?</function-decl>\n", "", "".join(lines), flags=re.DOTALL)
open(path, "w", encoding="utf-8").write(text)
END
git commit -qam "One function less"
release less
says less "lasp_comm_create_self"
says less "1 Removed"
echo "a release's report on the interface, checksums, bill of materials and archive are right"
