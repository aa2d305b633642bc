#!/usr/bin/env bash
# Memcheck over the programs that call the API: no invalid access, no use of undefined values, no leak, and nothing
# suppressed. `quick` is the part for make check-full; `whole` takes tests/long/valgrind.sh some minutes.
#     valgrind.sh quick|whole BUILD_DIR
set -uo pipefail
mode=$1 tests=$2/tests failed=0
command -v valgrind > /dev/null || { echo "SKIPPED: valgrind is not here (apt install valgrind)"; exit 77; }
log=$(mktemp)
trap 'rm -f "$log"' EXIT
export LASP_TEST_QUICK=1
export OPENBLAS_NUM_THREADS=1  # its own threads live until the end, and their stacks would look lost
export LASP_CYCLES=20

memcheck() {  # memcheck VERDICT PROGRAM FILTER [VALGRIND_OPTION...]
  local verdict=$1 program=$2 filter=$3 begin=$SECONDS status=0 ran
  shift 3
  # Threads take turns, or one that waits for a lock's owner could hold the only core for long.
  valgrind --quiet --error-exitcode=9 --leak-check=full --errors-for-leak-kinds=definite,possible --num-callers=20 \
    --fair-sched=try "$@" "$tests/$program" --gtest_brief=1 "--gtest_filter=$filter" > "$log" 2>&1 || status=$?
  ran=$(grep -oE '^\[=+\] [0-9]+ tests? from' "$log" | grep -oE '[0-9]+' | tail -1)
  [ "$verdict" = memory ] && [ $status = 1 ] && status=0
  if [ $status = 0 ] && [ "${ran:-0}" -gt 0 ] && ! grep -qE '^==[0-9]+==' "$log"; then
    printf '%-30s %4d tests, memory clean, %d s\n' "$program" "$ran" $((SECONDS - begin))
  else
    echo "$program, $filter: exit status $status"
    grep -E -A 25 '^==[0-9]+==' "$log" | head -n 80
    tail -n 20 "$log"
    failed=1
  fi
}
check() { memcheck tests "$@"; }
# Time limits of milliseconds are not kept under valgrind: of these the memory alone is judged.
check_memory() { memcheck memory "$@"; }
# A program with an operator new of its own keeps it; the malloc below is watched.
own_new=--soname-synonyms=somalloc=nouserintercepts

check abi/struct_test '*'
if [ "$mode" = quick ]; then
  check abi/bad_input '*WrongCalls*/*Null*:*WrongCalls*/Segment*:RightCalls.*'
  check conformance/lasp_conformance '*Cases.*/scalar_one_token*:*Cases.*/channel_packed_to_rank_edge*'
  check_memory fault/fault 'CustomTransport.*:HostilePeer.ARecord*:PeerLost.InForward*:Abort.*'
  check endurance/endurance 'Allocation.Ring' $own_new
else
  check abi/bad_input '*'
  # The kernels' arithmetic is in the conformance suite's cases, of which these are small.
  check unit/unit '*-*CpuBackend*:*Kernel*:*StepD*'
  check_memory unit/unit_transport '*' $own_new
  check conformance/lasp_conformance '*Cases.*/*one_token*:*Cases.*/*packed_at*:*Cases.*/*nal_batch*:Step.Packed*'
  check_memory fault/fault '*'
  check_memory kill/kill_threads '*'
  check_memory endurance/endurance '*' $own_new
fi
exit $failed
