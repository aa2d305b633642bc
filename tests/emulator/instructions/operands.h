// What the handlers of matrices and of asynchronous copies share: operands' values, and memory behind addresses.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdlib>

#include "machine/machine.h"

namespace emulator {

[[noreturn]] inline void fail(const Instruction &instruction, const std::string &why) {
  throw Fault(why + ": " + instruction.text);
}
inline bool has(std::string_view opcode, std::string_view part) {
  return opcode.find(part) != std::string_view::npos;
}

template <typename F>
inline void for_lanes(uint32_t lanes, F f) {
  for (; lanes; lanes &= lanes - 1) f(std::countr_zero(lanes));
}
// Of an instruction that all threads of a warp must execute together. False: none does.
inline bool all_lanes(const Instruction &instruction, uint32_t lanes) {
  if (lanes != 0 && lanes != kAllLanes) fail(instruction, "not converged");
  return lanes != 0;
}
inline uint64_t value(const Warp &warp, const Operand &o, int lane) {
  if (o.words == 0) return warp.predicate(o) >> lane & 1;
  return o.words == 2 ? warp.u64(o)[lane] : warp.u32(o)[lane];
}
inline int32_t signed_value(const Warp &warp, const Operand &o, int lane) {
  return static_cast<int32_t>(value(warp, o, lane));
}

// shared_memory() for the block's own, where it is there; `bytes` is a power of two.
inline std::byte *own_shared(const Block &block, uint64_t address, size_t bytes) {
  const uint64_t at = address - kSharedBase;
  if (at < block.shared.size() && bytes <= block.shared.size() - at && at % bytes == 0)
    return const_cast<std::byte *>(block.shared.data()) + at;
  return shared_memory(block, address, bytes);
}
// An address without the rank of a block, and the block that it is in.
inline uint64_t without_rank(uint64_t address) { return address & 0xffffff; }
inline Block &block_at(Block &own, uint64_t address, const Instruction &instruction) {
  const uint64_t rank = (address & 0xffffffff) >> 24;
  if (rank == 0) return own;
  if (!own.cluster || rank > own.cluster->blocks.size()) fail(instruction, "no such block in the cluster");
  return *own.cluster->blocks[rank - 1];
}
// Of any size and alignment.
inline std::byte *shared_span(const Block &block, uint64_t address, size_t bytes, const Instruction &instruction) {
  std::byte *const first = shared_memory(block, address, 1);
  if (bytes > 1 && shared_memory(block, address + bytes - 1, 1) != first + bytes - 1)
    fail(instruction, "beyond shared memory");
  return first;
}
// The same of global memory, one call after the other in the same allocation.
class GlobalSpan {
 public:
  std::byte *operator()(uint64_t address, size_t bytes, bool write, const Instruction &instruction) {
    if (address < begin_ || address + bytes > end_) {
      std::byte *const data = global_memory(address, 1, write);
      const void *begin = nullptr;
      const size_t size = memory_at(data, &begin);
      shift_ = reinterpret_cast<uint64_t>(data) - address;
      begin_ = reinterpret_cast<uint64_t>(begin) - shift_;
      end_ = begin_ + size;
      if (address + bytes > end_) fail(instruction, "beyond an allocation of global memory");
    }
    return reinterpret_cast<std::byte *>(address + shift_);
  }

 private:
  uint64_t begin_ = 1, end_ = 0, shift_ = 0;
};

// LASP_EMULATOR_ASYNC=late: copies and products are performed at the last moment that PTX allows, to find waits
// that are missing (late.h).
inline bool wants_late() {
  const char *const mode = std::getenv("LASP_EMULATOR_ASYNC");
  return mode && std::string_view(mode) == "late";
}

// Parts of the two families, in files of their own; null: not of this part.
Handler wgmma_instruction(std::string_view opcode, Instruction &instruction);
Handler mbarrier_instruction(std::string_view opcode, Instruction &instruction);
Handler bulk_instruction(std::string_view opcode, Instruction &instruction);

}  // namespace emulator
