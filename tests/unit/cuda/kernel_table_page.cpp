// The page docs/internals/kernel-table.md beside the table it is made from.     kernel_table_page [--write] FILE
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>

#include "cuda/choice/kernel_table.h"

int main(int argc, char **argv) {
  const bool write = argc == 3 && std::string(argv[1]) == "--write";
  if (argc != (write ? 3 : 2)) return std::fprintf(stderr, "usage: %s [--write] FILE\n", argv[0]), 2;
  const char *const path = argv[argc - 1];
  const std::string page = lasp::cuda::kernel_table_markdown();
  if (write) {
    std::ofstream file(path);
    return file << page && file.flush() ? 0 : (std::perror(path), 1);
  }
  std::ifstream file(path);
  const std::string there((std::istreambuf_iterator<char>(file)), {});
  if (there == page) return 0;
  std::fprintf(stderr, "%s is not what src/cuda/choice/kernel_table.cpp says: run this with --write\n", path);
  return 1;
}
