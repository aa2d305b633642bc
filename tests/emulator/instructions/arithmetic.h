// The parts of the family of arithmetic, in files of their own; null: not of this part, or not known.
#pragma once

#include "instructions/lanes.h"

namespace emulator {

Handler integer_instruction(const Parts &opcode, const Instruction &instruction);
Handler float_instruction(const Parts &opcode, const Instruction &instruction);
Handler bit_instruction(const Parts &opcode, const Instruction &instruction);
Handler comparison_instruction(const Parts &opcode,
                               const Instruction &instruction);  // setp, selp, logic of predicates
Handler move_instruction(const Parts &opcode, Instruction &instruction);
Handler conversion_instruction(const Parts &opcode, const Instruction &instruction);

}  // namespace emulator
