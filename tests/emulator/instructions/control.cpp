// Instructions of threads that meet, by the first words of the opcode, and trap.
#include "instructions/control.h"

namespace emulator {
namespace {

void trap(Warp &, const Instruction &, uint32_t) { throw Fault("the kernel gave up (trap)"); }

}  // namespace

Handler control_instruction(std::string_view opcode, Instruction &i) {
  const Parts p(opcode);
  if (opcode == "trap") return trap;
  if (p[1] == "warp" || p[0] == "shfl" || p[0] == "vote" || p[0] == "elect") return warp_instruction(p, i);
  if (p[0] == "bar" || p[0] == "barrier") return barrier_instruction(p, i);
  return nullptr;
}

}  // namespace emulator
