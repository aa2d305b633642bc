// A kernel as reader.cpp leaves it and machine.cpp runs it.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "machine/machine.h"
#include "machine/special.h"

namespace emulator {

// A value that is written into a register before a warp begins.
struct Preset {
  enum Kind : uint8_t { kConstant, kSpecial, kParameters, kShared, kDynamicShared, kLocal } kind = kConstant;
  Operand target;
  uint64_t value = 0;  // the constant, or an offset
  SpecialRegister special;
};

struct Kernel {
  std::string name;
  std::vector<Instruction> code;
  std::deque<std::vector<Operand>> operands;  // of the code
  std::deque<std::string> texts;
  std::vector<Preset> presets;
  uint32_t words = 0;  // of a warp's registers
  KernelFacts facts;
  size_t parameter_bytes = 0;
  size_t shared_bytes = 0, dynamic_alignment = 16;  // static; of the extern array
  size_t local_bytes = 0;
  Dim3 cluster;  // .reqnctapercluster
};

// What tells branches and returns from others; machine.cpp runs them itself. `detail` of a branch is its target.
void branch(Warp &, const Instruction &, uint32_t);
void leave(Warp &, const Instruction &, uint32_t);

// The kernel of that name in any module; null: there is none. Throws Fault where its text is not understood.
const Kernel *find_kernel(std::string_view name);

}  // namespace emulator
