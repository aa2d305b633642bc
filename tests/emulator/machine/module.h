// A module's functions and what it declares outside of them, found without reading the functions' bodies.
#pragma once

#include <map>
#include <string_view>
#include <vector>

#include "machine/program.h"

namespace emulator {

struct Function {
  std::string_view head, body;  // "(params) .maxntid ..." and what stands between the braces
  std::string_view results;     // of a .func
};

struct Module {
  std::string_view text;
  std::map<std::string_view, Function> functions;
  std::vector<std::string_view> shared;  // declarations outside functions
};

Module scan(std::string_view text);
// The numbers of a directive in a function's head, such as ".maxntid 128, 1, 1". False: it is not there.
bool directive(std::string_view head, std::string_view name, Dim3 &numbers);
// Reads the function into the kernel, with those that it calls. Throws Fault.
void read_kernel(const Module &module, const Function &function, Kernel &kernel);

}  // namespace emulator
