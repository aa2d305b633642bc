// The main function of a kernel test: it skips on devices that its kernels are not made for, measures with
// `--time`, and else runs the cases whose name holds the argument, or all.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdio>
#include <string>
#include <vector>

namespace lasp::gpu {

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
  const std::string wanted = argc > 1 ? argv[1] : "";
  if (wanted == "--time") {
    time();
    return 0;
  }
  int ran = 0, failed = 0;
  for (const auto &c : make_cases())
    if (std::string(c.name).find(wanted) != std::string::npos) ++ran, failed += !run_case(c);
  if (failed)
    std::printf("%d of %d cases FAILED\n", failed, ran);
  else if (ran)
    std::printf("all cases hold (%d)\n", ran);
  else
    std::printf("no case has '%s' in its name\n", wanted.c_str());
  return ran && !failed ? 0 : 1;
}

}  // namespace lasp::gpu
