// Instructions that compute lane by lane in registers, by the first word of the opcode.
#include "instructions/arithmetic.h"

namespace emulator {

Handler arithmetic_instruction(std::string_view opcode, Instruction &i) {
  const Parts p(opcode);
  if (p[0] == "cvt") return conversion_instruction(p, i);
  if (p[0] == "mov") return move_instruction(p, i);
  if (p[0] == "setp" || p[0] == "selp" || p.last() == "pred") return comparison_instruction(p, i);
  if (Handler h = float_instruction(p, i)) return h;
  if (Handler h = integer_instruction(p, i)) return h;
  return bit_instruction(p, i);
}

}  // namespace emulator
