#!/usr/bin/env bash
# The version stands in lasp.h; what cannot read it there states the same.     version.sh SOURCE_DIR
set -euo pipefail
cd "$1"
version=$(sed -nE 's/^#define LASP_VERSION_(MAJOR|MINOR|PATCH) ([0-9]+)$/\2/p' capi/include/lasp/lasp.h | paste -sd.)
failed=0
states() {  # states FILE PATTERN: its first group is the version
  local found
  found=$(sed -nE "s/$2/\\1/p" "$1" | head -1)
  [ "$found" = "$version" ] && echo "ok: $1" && return
  echo "$1 states \"$found\"; lasp.h states $version"
  failed=1
}
states CHANGELOG.md '^## \[([0-9.]+)\].*'
states bindings/rust/lasp-sys/Cargo.toml '^version = "([0-9.]+)".*'
states bindings/rust/lasp/Cargo.toml '^version = "([0-9.]+)".*'
states packaging/conda/recipe.yaml '^  version: "([0-9.]+)"$'
states packaging/spack/package.py '^    version\("([0-9.]+)".*'
states bindings/julia/Project.toml '^version = "([0-9.]+)"$'
states packaging/julia/build_tarballs.jl '^version = v"([0-9.]+)"$'
exit $failed
