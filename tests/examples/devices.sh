#!/usr/bin/env bash
# Runs a program that needs a GPU; where there is none, or a build is without CUDA, that is a skip with its reason.
#     devices.sh COMMAND...
set -uo pipefail
if output=$("$@" 2>&1); then
  printf '%s\n' "$output"
  exit 0
fi
printf '%s\n' "$output"
reason=$(grep -E -m 1 'LASP_ERROR_NO_DEVICE|LASP_ERROR_NOT_BUILT|built without CUDA' <<< "$output") || exit 1
echo "SKIPPED: $reason"
exit 77
