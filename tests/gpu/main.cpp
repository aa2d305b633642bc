// Test programs that are for GPUs alone: all that the common test code makes is on the GPU.
#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>

#include "support/device.h"
#include "support/measure.h"

int main(int argc, char **argv) {
  setenv("LASP_TEST_DEVICE", "cuda", 1);
  testing::InitGoogleTest(&argc, argv);
  if (const std::string reason = gpu::why_unusable(); !reason.empty()) {
    std::cout << "SKIPPED: " << reason << "\n";
    return 77;
  }
  std::cout << gpu::device_count() << " x " << gpu::device_name(0) << "\n";
  const int result = RUN_ALL_TESTS();
  lasp_test::print_worst_errors(std::cout);
  return result;
}
