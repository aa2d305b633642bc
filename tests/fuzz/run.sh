#!/usr/bin/env bash
# Builds the fuzzer and runs it from the committed corpus; fails on the first crash, leak, overflow or read beyond a buffer.
#     run.sh SOURCE_DIR BUILD_DIR (--seconds N | --runs N)
# A failing input is left in BUILD_DIR; BUILD_DIR/tests/fuzz/fuzz_api FILE runs it again. What was found new is kept in
# BUILD_DIR/corpus; --merge folds it into the committed corpus.
set -euo pipefail
source=$1 build=$2 how=$3 amount=${4:-}
command -v clang++ > /dev/null || { echo "SKIPPED: clang is not here (apt install clang)"; exit 77; }
probe=$(mktemp -d)
trap 'rm -rf "$probe"' EXIT
echo 'extern "C" int LLVMFuzzerTestOneInput(const unsigned char *, unsigned long) { return 0; }' > "$probe/p.cpp"
clang++ -fsanitize=fuzzer,address,undefined "$probe/p.cpp" -o "$probe/p" 2> /dev/null ||
  { echo "SKIPPED: this clang has no libFuzzer (apt install libclang-rt-14-dev)"; exit 77; }

cmake --preset fuzz -S "$source" -B "$build" > "$probe/log" || { cat "$probe/log"; exit 1; }
cmake --build "$build" --target fuzz_api -j "$(nproc)" > "$probe/log" || { cat "$probe/log"; exit 1; }
program=$(realpath "$build/tests/fuzz/fuzz_api") committed=$(realpath "$source/tests/fuzz/corpus.tar.gz")
mkdir -p "$build/corpus"
cd "$build"
tar -C corpus -xzf "$committed"
case $how in
  --seconds) limit=-max_total_time=$amount ;;
  --runs) limit=-runs=$amount ;;
  --merge)
    mkdir "$probe/least"
    "$program" -merge=1 -max_len=384 "$probe/least" corpus
    tar -C "$probe/least" --sort=name --owner=0 --group=0 --mtime=@0 -cf - . | gzip -9n > "$committed"
    echo "$(ls "$probe/least" | wc -l) inputs in $committed"
    exit ;;
  *) echo "run.sh: unknown option $how" >&2; exit 2 ;;
esac
"$program" "$limit" -max_len=384 -rss_limit_mb=4096 -print_final_stats=1 -verbosity=0 corpus 2>&1 | tee "$probe/out"
grep -q 'stat::number_of_executed_units' "$probe/out"
