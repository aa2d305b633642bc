#!/usr/bin/env bash
# The example trainer as its README builds it without CMake: one command of nvcc with pkg-config, in a folder that holds
# nothing but what was installed. Then its checks.
#     tests/long/trainer.sh BUILD_DIR [JOBS]
set -euo pipefail
build=$(cd "$1" && pwd) jobs=${2:-1}
for tool in nvcc pkg-config; do
  command -v $tool > /dev/null || { echo "SKIPPED: $tool is not here"; exit 77; }
done
pkg-config --exists openblas || { echo "SKIPPED: OpenBLAS has no pkg-config file here"; exit 77; }
work=$build/tests/trainer
rm -rf "$work"
cmake --install "$build" --prefix "$work/prefix" > /dev/null
cp -r "$work/prefix/share/doc/lasp/examples/train_lm" "$work/source"
cd "$work/source"
lib_dir=$(dirname "$(dirname "$(find "$work/prefix" -name lasp.pc)")")
read -r -a flags <<< "$(PKG_CONFIG_PATH=$lib_dir/pkgconfig pkg-config --cflags --libs lasp openblas)"
nvcc -std=c++20 -O3 -gencode arch=compute_90,code=sm_90 -t "$jobs" -DTRAIN_LM_HAS_CUDA -DTRAIN_LM_HAS_OPENBLAS \
  ./*.cpp ./*.cu "${flags[@]}" -o train_lm
export LD_LIBRARY_PATH=$lib_dir
for check in gradients exchange decoding; do ./train_lm --check-$check; done
