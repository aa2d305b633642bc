// Boxes of a tensor map: how their bytes lie in shared memory, and which of them there are in global memory.
#pragma once

#include "instructions/operands.h"

namespace emulator {

class TensorBox {
 public:
  enum class Action { kLoad, kStore, kAdd };
  // Reads the map at a generic address.
  TensorBox(const Block &block, uint64_t map, int rank, const Instruction &instruction);

  int32_t &coordinate(int dimension) { return coordinates_[dimension]; }
  size_t bytes() const { return bytes_; }
  // Between global memory and shared memory at an address whose byte is `shared`: PTX ISA, "Tensors", "Tensor
  // access modes: tiled mode", "Swizzling modes". What is out of bounds is loaded as zeros, and not stored.
  void perform(Action action, uint64_t shared_address, std::byte *shared) const;

 private:
  void add(std::byte *to, const std::byte *from, size_t bytes) const;

  TensorMap map_;
  const Instruction *instruction_;
  int32_t coordinates_[5] = {};
  size_t row_bytes_ = 0, bytes_ = 0;
};

}  // namespace emulator
