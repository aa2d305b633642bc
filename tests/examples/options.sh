#!/usr/bin/env bash
# Wrong command lines of train_lm: each is refused with exit status 2 and a sentence that says why.
#     options.sh TRAIN_LM
set -uo pipefail
failed=0
refused() { # refused WORDS ARGUMENT...: the sentence holds these words
  local words=$1 output status
  shift
  output=$("$train_lm" "$@" 2>&1)
  status=$?
  if [ $status != 2 ] || [[ $output != train_lm:*"$words"* ]] || [ "$(wc -l <<< "$output")" != 1 ]; then
    echo "$*: expected status 2 and one sentence with \"$words\", got $status:"$'\n'"$output"
    failed=1
  fi
}
train_lm=$1
refused 'There is no option --frobnicate' --frobnicate
refused 'takes no value' --compare=1
refused 'needs a value' --steps
refused 'a whole number from 1' --log-every 0
refused 'one of bfloat16 float32' --dtype float16
refused 'one of cpu cuda' --device tpu
refused 'a name that is not empty' --cublas ''
refused '--device cuda takes multiples of 8' --device cuda --d-ff 100
refused '--device cuda takes multiples of 8' --compare-devices --d-ff 100
refused '--device cuda takes at most 16384' --device cuda --d-model 32768 --heads 64
refused '--dtype bfloat16 is for training with --device cuda' --dtype bfloat16
refused '--dtype bfloat16 is for training with --device cuda' --dtype bfloat16 --device cuda --compare
refused 'is not a multiple of --heads' --d-model 64 --heads 3
"$train_lm" --help | grep -q -e '--check-device' || { echo "--help does not list --check-device"; failed=1; }
exit $failed
