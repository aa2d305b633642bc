// Runs the suite and prints, at its end, the worst errors it saw beside their bounds.
#include <gtest/gtest.h>

#include <iostream>

#include "support/measure.h"

int main(int argc, char **argv) {
  testing::InitGoogleTest(&argc, argv);
  const int result = RUN_ALL_TESTS();
  lasp_test::print_worst_errors(std::cout);
  return result;
}
