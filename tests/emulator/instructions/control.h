// The parts of the family of control, in files of their own; null: not of this part, or not known.
#pragma once

#include "instructions/lanes.h"

namespace emulator {

Handler barrier_instruction(const Parts &opcode, Instruction &instruction);
Handler warp_instruction(const Parts &opcode, Instruction &instruction);  // shuffles, votes, elect, bar.warp

}  // namespace emulator
