// wgmma: products of a warpgroup, of which each warp finds its own 16 of 64 rows. Operands of 16 bits, accumulators
// float.
#include "instructions/elements.h"
#include "instructions/late.h"
#include "instructions/product.h"

namespace emulator {
namespace {

// PTX ISA, "Asynchronous warpgroup level matrix instructions: matrix descriptor" and "strides"; the canonical
// layouts are those of CUTLASS (cute/atom/mma_traits_sm90_gmma.hpp), there in units of 16 bytes. All pieces of a
// tile are of 16 bytes: 8 elements along the sum (K-major), or along rows of A or columns of B (MN-major, the
// transposed).
class Tile {
 public:
  Tile(const Block &block, uint64_t descriptor, const Instruction &instruction)
      : block_(block),
        start_(field(descriptor)),
        leading_(field(descriptor >> 16)),
        stride_(field(descriptor >> 32)) {
    constexpr uint32_t kWidths[4] = {16, 128, 64, 32};
    width_ = kWidths[descriptor >> 62];
    if (descriptor >> 49 & 7) fail(instruction, "a matrix descriptor with a base offset");
  }
  // Elements 8 * part to 8 * part + 7 of the sum, of a row or column.
  const std::byte *k_major(uint32_t row, uint32_t part) const {
    return at(row / 8 * stride_ + row % 8 * width_ + part * (width_ == 16 ? leading_ : 16));
  }
  // Rows or columns 8 * part to 8 * part + 7, of an element of the sum.
  const std::byte *mn_major(uint32_t part, uint32_t k) const {
    if (width_ == 16) return at(part * stride_ + k / 8 * leading_ + k % 8 * 16);
    const uint32_t parts = width_ / 16;
    return at(part / parts * leading_ + part % parts * 16 + k / 8 * stride_ + k % 8 * width_);
  }

 private:
  static uint32_t field(uint64_t bits) { return static_cast<uint32_t>(bits & 0x3fff) << 4; }
  // Swizzling is of addresses: bits 4 and up are combined with bits 7 and up, as many as the mode has.
  const std::byte *at(uint32_t offset) const {
    const uint32_t address = start_ + offset;
    return own_shared(block_, address ^ (address >> 7 & (width_ / 16 - 1)) << 4, 16);
  }

  const Block &block_;
  uint32_t start_, leading_, stride_, width_ = 16;
};

// What of the operands is read at once, even where the product is late. `detail` of wgmma.mma_async: its columns.
struct Operands {
  uint64_t a = 0, b = 0;  // descriptors
  bool accumulate = false, negate = false, a_in_registers = false, transpose_a = false, transpose_b = false;
};

Operands read_operands(const Warp &warp, const Instruction &instruction) {
  const int accumulators = static_cast<int>(instruction.detail) / 2;
  Operands o;
  o.a_in_registers = instruction.count == accumulators + 9;
  if (!o.a_in_registers && instruction.count != accumulators + 7) fail(instruction, "operands");
  int at = accumulators;
  if (!o.a_in_registers) o.a = value(warp, instruction[at], 0);
  at += o.a_in_registers ? 4 : 1;
  o.b = value(warp, instruction[at++], 0);
  o.accumulate = value(warp, instruction[at++], 0) != 0;
  const bool negate_a = signed_value(warp, instruction[at++], 0) < 0;
  o.negate = negate_a != (signed_value(warp, instruction[at++], 0) < 0);
  if (!o.a_in_registers) o.transpose_a = value(warp, instruction[at++], 0) != 0;
  o.transpose_b = value(warp, instruction[at], 0) != 0;
  return o;
}

// Fragments of A in registers are those of mma.m16n8k16.
template <bool kBFloat16>
void read_left(const Warp &warp, const Instruction &instruction, const Operands &o, Left &a) {
  if (o.a_in_registers) {
    const int first = static_cast<int>(instruction.detail) / 2;
    for (int i = 0; i < 4; ++i) {
      const uint32_t *const from = warp.u32(instruction[first + i]);
      for (int row = 0; row < 8; ++row) unpack<kBFloat16>(from + 4 * row, a.x[i % 2 * 8 + row] + i / 2 * 8);
    }
  } else {
    const Tile tile(*warp.block, o.a, instruction);
    const uint32_t first = warp.index % 4 * 16;
    if (o.transpose_a) {
      for (int k = 0; k < 16; ++k)
        for (int part = 0; part < 2; ++part) {
          alignas(64) double values[8];
          unpack<kBFloat16>(tile.mn_major(first / 8 + part, k), values);
          for (int i = 0; i < 8; ++i) a.x[8 * part + i][k] = values[i];
        }
    } else {
      for (int row = 0; row < 16; ++row)
        for (int part = 0; part < 2; ++part)
          unpack<kBFloat16>(tile.k_major(first + row, part), a.x[row] + 8 * part);
    }
  }
  if (o.negate)
    for (auto &row : a.x)
      for (double &x : row) x = -x;
}

template <bool kBFloat16>
void read_right(const Tile &tile, bool transposed, int block, Right &b) {
  if (transposed) {
    for (int k = 0; k < 16; ++k) unpack<kBFloat16, true>(tile.mn_major(block, k), b.x[k]);
  } else {
    for (int part = 0; part < 2; ++part) {
      uint16_t columns[8][8];
      for (int i = 0; i < 8; ++i) std::memcpy(columns[i], tile.k_major(8 * block + i, part), 16);
      unpack_columns<kBFloat16>(columns, b.x + 8 * part);
    }
  }
}

template <bool kBFloat16>
void perform(const Warp &warp, const Instruction &instruction, const Operands &o) {
  static const float kZeros[kLanes] = {};
  Left a;
  read_left<kBFloat16>(warp, instruction, o, a);
  const Tile tile(*warp.block, o.b, instruction);
  const int blocks = static_cast<int>(instruction.detail) / 8;
  for (int block = 0; block < blocks; ++block) {
    Right b;
    read_right<kBFloat16>(tile, o.transpose_b, block, b);
    float *d[4];
    const float *c[4];
    for (int i = 0; i < 4; ++i) {
      d[i] = warp.f32(instruction[4 * block + i]);
      c[i] = o.accumulate ? d[i] : kZeros;
    }
    multiply<16>(a, b, c, d);
  }
}

template <bool kBFloat16, bool kLate>
void mma_async(Warp &warp, const Instruction &instruction, uint32_t lanes) {
  if (!all_lanes(instruction, lanes)) return;
  const Operands o = read_operands(warp, instruction);
  if constexpr (kLate)
    late(warp).products.add(0, 0, [&warp, &instruction, o] { perform<kBFloat16>(warp, instruction, o); });
  else
    perform<kBFloat16>(warp, instruction, o);
}

void nothing(Warp &, const Instruction &instruction, uint32_t lanes) { all_lanes(instruction, lanes); }
void commit(Warp &warp, const Instruction &instruction, uint32_t lanes) {
  if (all_lanes(instruction, lanes)) late(warp).products.commit(1);
}
void wait(Warp &warp, const Instruction &instruction, uint32_t lanes) {
  if (all_lanes(instruction, lanes)) late(warp).products.wait(1, value(warp, instruction[0], 0));
}

}  // namespace

Handler wgmma_instruction(std::string_view opcode, Instruction &instruction) {
  const bool is_late = wants_late();
  if (opcode == "wgmma.fence.sync.aligned") return nothing;
  if (opcode == "wgmma.commit_group.sync.aligned") return is_late ? commit : nothing;
  if (opcode == "wgmma.wait_group.sync.aligned") return is_late ? wait : nothing;

  constexpr std::string_view kFirst = "wgmma.mma_async.sync.aligned.m64n";
  if (!opcode.starts_with(kFirst)) return nullptr;
  int columns = 0;
  size_t at = kFirst.size();
  for (; at < opcode.size() && opcode[at] >= '0' && opcode[at] <= '9' && columns < 1000; ++at)
    columns = 10 * columns + (opcode[at] - '0');
  if (columns % 8 != 0 || columns < 8 || columns > 256) return nullptr;
  const std::string_view rest = opcode.substr(at);
  if (rest != "k16.f32.bf16.bf16" && rest != "k16.f32.f16.f16") return nullptr;
  const bool bfloat16 = rest == "k16.f32.bf16.bf16";
  instruction.detail = static_cast<uint64_t>(columns);
  if (is_late) return bfloat16 ? mma_async<true, true> : mma_async<false, true>;
  return bfloat16 ? mma_async<true, false> : mma_async<false, false>;
}

}  // namespace emulator
