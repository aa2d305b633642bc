#!/usr/bin/env bash
# Kernels on the emulated GPU (tests/emulator): all cases of their tests, at once and late, and the conformance tests,
# which CI runs in part. Skipped where the build has no emulator (LASP_EMULATOR). It takes an hour on one core.
#     tests/long/emulated.sh BUILD_DIR [JOBS]
set -uo pipefail
programs=$(cd "$1" && pwd)/tests/emulator
[ -x "$programs/lasp_kernel_test_emulated" ] ||
  { echo "SKIPPED: built without LASP_EMULATOR (cmake --preset ci has it)"; exit 77; }
log=$programs/long
mkdir -p "$log"

# run NAME VARIABLE=VALUE... PROGRAM ARGUMENT...: a line of what came of it; the output is in a file.
run() {
  local name=$1 begin=$SECONDS status
  shift
  env "$@" > "$log/$name.txt" 2>&1
  status=$?
  printf '%-32s %-12s %5d s\n' "$name" "$([ $status = 0 ] && echo passed || echo "FAILED ($status)")" \
    $((SECONDS - begin))
  [ $status = 0 ] || tail -n 20 "$log/$name.txt"
  return $status
}
export -f run
export log

jobs=() part_number=0
for test in kernel fused_backward mma_pass channel_pass channel_states channel_backward packed_tables decay_cutoff \
            delta_fast delta; do
  program=$programs/lasp_${test}_test_emulated
  jobs+=("run $test '$program'" "run $test.late LASP_EMULATOR_ASYNC=late '$program'")
done
jobs+=("run delta_mma '$programs/lasp_delta_fast_test_emulated' --mma")
for capability in 80 86; do
  jobs+=("run delta.$capability LASP_EMULATED_CAPABILITY=$capability '$programs/lasp_delta_test_emulated'")
  jobs+=("run delta_mma.$capability LASP_EMULATED_CAPABILITY=$capability '$programs/lasp_delta_fast_test_emulated' --mma")
done
jobs+=("run gpu LASP_TEST_QUICK=1 '$programs/lasp_gpu_test_emulated' --gtest_brief=1")
# By peer memory, and by the NCCL that is played.
nccl="LASP_TEST_QUICK=1 LASP_EMULATED_DEVICES=4 '$programs/lasp_gpu_nccl_emulated' --gtest_brief=1"
jobs+=("run nccl_peer $nccl" "run nccl LASP_PEER_MEMORY=0 $nccl")
for part in '*Cases.*/none_*' '*Cases.*/bidirectional_*' '*Cases.*/head_*' '*Cases.*/scalar_*' '*Cases.*/channel_*' \
  '*Cases.*/delta_*' '*Vectors.*' '*-*Cases.*:*Vectors.*:*Drift*'; do
  jobs+=("run conformance.$((++part_number)) LASP_TEST_QUICK=1 LASP_TEST_DEVICE=cuda \
    '$programs/lasp_conformance_emulated' --gtest_brief=1 --gtest_filter='$part'")
done
printf '%s\0' "${jobs[@]}" | xargs -0 -n 1 -P "${2:-1}" bash -c
