#!/bin/sh
# Runs a program and checks its exit status and that a line of its output matches.   expect.sh STATUS PATTERN PROGRAM...
wanted=$1 pattern=$2
shift 2
output=$("$@" 2>&1)
status=$?
printf '%s\n' "$output"
[ $status = "$wanted" ] || { echo "exit status $status, expected $wanted"; exit 1; }
printf '%s\n' "$output" | grep -qE -- "$pattern" || { echo "no line matches: $pattern"; exit 1; }
