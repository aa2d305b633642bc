#!/usr/bin/env bash
# Debian packages, made and tried in a clean root (packaging/debian).     debian.sh BUILD_DIR JOBS
set -euo pipefail
cd "$(dirname "$0")/../.."
command -v dpkg-shlibdeps > /dev/null || { echo "SKIPPED: not on Debian"; exit 77; }
JOBS=${2:-1} packaging/debian/build --cpu
exec packaging/debian/check
