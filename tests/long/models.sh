#!/usr/bin/env bash
# Models of Hugging Face transformers over 2, 3 and 4 ranks (bindings/python/tests/test_torch_hf_full.py); `make
# check-full` has 3 alone, and fewer models in bfloat16. Then trainers over 2 x 2 ranks, and layers of
# flash-linear-attention, Megatron-Core and torchtitan where they are installed. Minutes on two cores.
#     tests/long/models.sh BUILD_DIR      LASP_HF_RANKS="2 3 4"; LASP_TORCH_VENV, see torch-setup
set -uo pipefail
build=$(cd "$1" && pwd)
source=$(cd "$(dirname "$0")/../.." && pwd)
package=$build/bindings/python/package
[ -d "$package" ] || { echo "SKIPPED: this build has no Python package"; exit 77; }
"$source/bindings/python/torch-setup" || exit $?
export LASP_HF_RANKS=${LASP_HF_RANKS:-"2 3 4"}
"$source/bindings/python/torch-tests" "$package" test_torch_hf_full.py || exit $?
"$source/bindings/python/torch-tests" "$package" test_torch_trainers.py test_torch_fla.py -k full || exit $?
for each in megatron torchtitan; do
  "$source/bindings/python/torch-tests" "$package" "test_torch_$each.py" || [ $? -eq 77 ] || exit 1
done
exec "$source/bindings/python/torch-tests" "$package" test_torch_lightning.py -k full
