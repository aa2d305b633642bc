// Runs the suite and prints, at its end, the worst errors it saw beside their bounds. With LASP_TEST_DEVICE=cuda in
// the environment every context, virtual rank and buffer is on GPU 0; without one the suite is skipped.
#include <gtest/gtest.h>

#include <iostream>

#include "support/device.h"
#include "support/guarded_buffer.h"
#include "support/measure.h"

int main(int argc, char **argv) {
  lasp_test::keep_freed_memory();
  testing::InitGoogleTest(&argc, argv);
  if (lasp_test::on_cuda()) {
    if (const std::string reason = gpu::why_unusable(); !reason.empty()) {
      std::cout << "SKIPPED: " << reason << "\n";
      return 77;
    }
    std::cout << "On " << gpu::device_name(0) << "\n";
  }
  const int result = RUN_ALL_TESTS();
  lasp_test::print_worst_errors(std::cout);
  return result;
}
