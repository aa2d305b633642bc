#!/usr/bin/env bash
# Builds the fuzzers and runs them one after another from the committed corpus, for a table of what they did. Fails
# when one found a crash, a leak, an overflow, a read or write beyond a buffer, or a broken promise.
#     run.sh SOURCE_DIR BUILD_DIR (--seconds N | --runs N | --merge | --coverage) [TARGET...]
# --seconds and --runs are over all targets; the latter in the shares below. A failing input is left in BUILD_DIR,
# and BUILD_DIR/tests/fuzz/fuzz_TARGET FILE runs it again. What was found new is kept in BUILD_DIR/corpus; --merge
# folds it into the committed corpus. --coverage replays that and prints which lines of the library it reaches.
set -euo pipefail
source=$(realpath "$1") how=$3 amount=0
mkdir -p "$2"
build=$(realpath "$2")
shift 3
case $how in
  --seconds | --runs) amount=$1 && shift ;;
  --merge | --coverage) ;;
  *) echo "run.sh: unknown option $how" >&2 && exit 2 ;;
esac
declare -A share=([plan]=22 [args]=15 [packing]=12 [groups]=44 [peer]=3 [handles]=4)  # of a hundred executions
targets=("$@")
[ ${#targets[@]} != 0 ] || targets=(plan args packing groups peer handles)
for target in "${targets[@]}"; do
  [ -n "${share[$target]:-}" ] || { echo "run.sh: no target $target" >&2; exit 2; }
done

command -v clang++ > /dev/null || { echo "SKIPPED: clang is not here (apt install clang)"; exit 77; }
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
echo 'extern "C" int LLVMFuzzerTestOneInput(const unsigned char *, unsigned long) { return 0; }' > "$scratch/p.cpp"
clang++ -fsanitize=fuzzer,address,undefined "$scratch/p.cpp" -o "$scratch/p" 2> /dev/null ||
  { echo "SKIPPED: this clang has no libFuzzer (apt install libclang-rt-14-dev)"; exit 77; }

make_fuzzers() {  # make_fuzzers DIRECTORY [CMAKE_OPTION...]
  local programs=("${targets[@]/#/fuzz_}") directory=$1
  shift
  cmake --preset fuzz -S "$source" -B "$directory" "$@" > "$scratch/log" 2>&1 || { cat "$scratch/log"; exit 1; }
  cmake --build "$directory" --target "${programs[@]}" -j "$(nproc)" > "$scratch/log" 2>&1 ||
    { cat "$scratch/log"; exit 1; }
}

committed=$source/tests/fuzz/corpus.tar.gz
mkdir -p "$build/corpus"
tar -C "$build/corpus" -xzf "$committed"
for target in "${targets[@]}"; do mkdir -p "$build/corpus/$target"; done
cd "$build"
# Entropic scheduling and the growing length limit pay where an execution takes long; these take microseconds.
flags=(-max_len=224 -len_control=0 -entropic=0 -reload=0 -timeout=120 -rss_limit_mb=3072 -print_final_stats=1)

case $how in
  --merge)
    make_fuzzers "$build"
    tar -C "$scratch" --one-top-level=least -xzf "$committed"
    for target in "${targets[@]}"; do
      rm -rf "$scratch/least/$target" && mkdir -p "$scratch/least/$target" "$scratch/found"
      # -use_counters=0: an input for each edge and feature, not for each number of times.
      "tests/fuzz/fuzz_$target" -merge=1 -use_counters=0 -max_len=224 "$scratch/found" "corpus/$target" \
        2> "$scratch/log" || { tail -n 40 "$scratch/log"; exit 1; }
      ls -Sr "$scratch/found" | cat -n | while read -r number name; do
        mv "$scratch/found/$name" "$scratch/least/$target/$(printf %04d "$number")"
      done
      echo "$target: $(ls "$scratch/least/$target" | wc -l) inputs"
    done
    (cd "$scratch/least" && tar --sort=name --owner=0 --group=0 --mtime=@0 -cf - *) | gzip -9n > "$committed"
    echo "$(stat -c %s "$committed") bytes in $committed"
    exit ;;
  --coverage)
    command -v llvm-cov > /dev/null || { echo "run.sh: --coverage needs llvm-cov (apt install llvm)" >&2; exit 2; }
    make_fuzzers "$build/coverage" \
      -DCMAKE_CXX_FLAGS_RELWITHDEBINFO="-O1 -g1 -fprofile-instr-generate -fcoverage-mapping"
    objects=()
    for target in "${targets[@]}"; do
      program=$build/coverage/tests/fuzz/fuzz_$target
      LLVM_PROFILE_FILE=$scratch/$target.profraw "$program" -runs=0 -max_len=224 "corpus/$target" \
        2> "$scratch/log" || { tail -n 40 "$scratch/log"; exit 1; }
      objects+=(-object "$program")
    done
    llvm-profdata merge -o "$scratch/all.profdata" "$scratch"/*.profraw
    llvm-cov report "${objects[@]:1}" -instr-profile "$scratch/all.profdata" "$source/capi" "$source/src" |
      awk -v root="$source/" '{ sub(root, "") } /\.(cpp|h) |^TOTAL/ { print $1, $8, $9, $10 }' |
      sed '1i file lines missed covered' | column -t
    exit ;;
esac

make_fuzzers "$build"
failed=0 executions=0
stat_of() { sed -n "s/^stat::$1: *//p" "$scratch/out"; }
printf '%-10s %12s %9s %9s %8s  %s\n' target executions exec/s edges corpus result
for target in "${targets[@]}"; do
  if [ "$how" = --seconds ]; then
    limit=-max_total_time=$(((amount + ${#targets[@]} - 1) / ${#targets[@]}))
  else
    total=0
    for other in "${targets[@]}"; do total=$((total + share[$other])); done
    limit=-runs=$(((amount * share[$target] + total - 1) / total))
  fi
  result=clean
  "tests/fuzz/fuzz_$target" "$limit" "${flags[@]}" "corpus/$target" > "$scratch/out" 2>&1 || result=FAILED
  count=$(stat_of number_of_executed_units)
  [ -n "$count" ] || { result=FAILED; count=0; }
  edges=$(grep -o 'cov: [0-9]*' "$scratch/out" | tail -n 1 | cut -d' ' -f2) || true
  printf '%-10s %12d %9s %9s %8d  %s\n' "$target" "$count" "$(stat_of average_exec_per_sec)" "${edges:--}" \
    "$(ls "corpus/$target" | wc -l)" "$result"
  executions=$((executions + count))
  [ $result = clean ] || { grep -v -E '^#[0-9]|NEW_FUNC|Uses:' "$scratch/out" | tail -n 60; failed=1; }
done
echo "$executions executions in all"
exit $failed
