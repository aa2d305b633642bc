// The main function of a kernel test: it skips on devices that its kernels are not made for, measures with
// `--time`, and else runs the cases whose name holds one of the arguments, or all.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdio>
#include <string>
#include <vector>

namespace lasp::gpu {

// Whether an argument from `first` on is part of the name, or there is none.
inline bool is_wanted(const std::string &name, int argc, char **argv, int first = 1) {
  for (int n = first; n < argc; ++n)
    if (name.find(argv[n]) != std::string::npos) return true;
  return argc <= first;
}

enum class Needs { kTensorCores, kHopper };  // compute capability 8.0 or later, or 9.0

// A line of its own at a time, so that a test that hangs has said what held before it.
inline int run_kernel_cases(int argc, char **argv, Needs needs, void (*load)(), void (*time)(), auto make_cases,
                            auto run_case) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  cudaDeviceProp device;
  const bool found = cudaGetDeviceProperties(&device, 0) == cudaSuccess;
  if (!found || (needs == Needs::kHopper ? device.major != 9 || device.minor != 0 : device.major < 8)) {
    std::printf("skipped: no device of compute capability %s\n", needs == Needs::kHopper ? "9.0" : "8.0 or later");
    return 77;
  }
  if (load) load();
  if (argc > 1 && std::string(argv[1]) == "--time") {
    time();
    return 0;
  }
  int ran = 0, failed = 0;
  for (const auto &c : make_cases())
    if (is_wanted(c.name, argc, argv)) ++ran, failed += !run_case(c);
  if (failed)
    std::printf("%d of %d cases FAILED\n", failed, ran);
  else if (ran)
    std::printf("all cases hold (%d)\n", ran);
  else
    std::printf("no case has an argument in its name\n");
  return ran && !failed ? 0 : 1;
}

}  // namespace lasp::gpu
