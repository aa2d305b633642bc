// One program for both sides: the tests, and with --worker RANK RANKS one rank of the group that they run.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <iostream>

#include "gpu/nccl_processes.h"
#include "gpu/nccl_worker.h"
#include "support/measure.h"

namespace {

int run_tests() {
  lasp_test::NcclProcesses &group = lasp_test::nccl_processes();
  if (!group.why_unusable().empty()) {
    std::cout << "SKIPPED: " << group.why_unusable() << "\n";
    return 77;
  }
  std::cout << group.description() << std::endl;
  const int result = RUN_ALL_TESTS();
  lasp_test::print_worst_errors(std::cout);
  const std::string wrong = group.close();
  if (!wrong.empty()) std::cout << wrong << "\n";
  return wrong.empty() ? result : 1;
}

}  // namespace

int main(int argc, char **argv) {
  if (argc == 4 && std::strcmp(argv[1], "--worker") == 0)
    return lasp_test::nccl_worker(lasp_test::WorkerProcesses::kSocket, std::atoi(argv[2]), std::atoi(argv[3]));
  testing::InitGoogleTest(&argc, argv);
  try {
    return run_tests();
  } catch (const std::exception &error) {
    std::cout << "no group of processes: " << error.what() << "\n";
    return 1;
  }
}
