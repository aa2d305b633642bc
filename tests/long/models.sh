#!/usr/bin/env bash
# Models of Hugging Face transformers over 2, 3 and 4 ranks (bindings/python/tests/test_torch_hf_full.py; `make
# check-full` splits fewer over 2), and the command that verifies one (test_torch_verify.py). Then layers of flash-linear-attention over
# as many ranks, and trainers, Megatron-Core and torchtitan over 2 x 2. Minutes on two cores. Fails where a package is not
# installed, but for those that LASP_MODELS_WITHOUT names; what did not run is said at the end.
#     tests/long/models.sh BUILD_DIR      LASP_HF_RANKS="2 3 4"; LASP_MODELS_WITHOUT="megatron deepspeed"; LASP_TORCH_VENV,
#                                         see torch-setup
set -uo pipefail
build=$(cd "$1" && pwd)
source=$(cd "$(dirname "$0")/../.." && pwd)
package=$build/bindings/python/package
[ -d "$package" ] || { echo "SKIPPED: this build has no Python package"; exit 77; }
"$source/bindings/python/torch-setup" || exit $?
export LASP_HF_RANKS=${LASP_HF_RANKS:-"2 3 4"}
venv=${LASP_TORCH_VENV:-$source/build/torch-venv}
sets=0 ran=0 failed=0 not_run=''

# tests "PACKAGES" FILE [OPTIONS]: one set of tests, where all of the packages are installed.
tests() {
  local packages=$1 absent=''
  shift
  sets=$((sets + 1))
  for each in $packages; do
    "$venv/bin/python" -c 'import importlib.util as u, sys; sys.exit(u.find_spec(sys.argv[1]) is None)' "$each" ||
      absent+=" $each"
  done
  for each in $absent; do
    [[ " ${LASP_MODELS_WITHOUT:-} " == *" $each "* ]] || failed=1
  done
  if [ -n "$absent" ]; then
    not_run+="not run: $* without$absent"$'\n'
  elif "$source/bindings/python/torch-tests" "$package" "$@"; then
    ran=$((ran + 1))
  else
    failed=1
    not_run+="failed: $*"$'\n'
  fi
}

tests transformers test_torch_hf_full.py
tests transformers test_torch_verify.py -k full
tests "transformers fla triton" test_torch_fla.py -k full
tests "transformers accelerate" test_torch_trainers.py -k full
tests "transformers accelerate deepspeed" test_torch_trainers.py -k two_ranks
tests "transformers megatron" test_torch_megatron.py
tests "transformers torchtitan triton" test_torch_torchtitan.py
tests "transformers lightning" test_torch_lightning.py -k full
printf '%s of %s sets of tests of models passed\n%s' "$ran" "$sets" "$not_run"
exit "$failed"
