// Instructions of matrices: mma.sync, ldmatrix, stmatrix, movmatrix; wgmma is in wgmma.cpp. In a register of a
// fragment, as the file has it, lanes 4i to 4i + 3 hold row i of an 8 x 8 matrix: eight 16-bit elements in order.
#include "instructions/elements.h"
#include "instructions/operands.h"
#include "instructions/product.h"

namespace emulator {
namespace {

// PTX ISA, "Warp-level matrix instructions: mma": m16n8k8 and m16n8k16 of 16-bit elements, accumulators float.
template <bool kBFloat16, int kSum>
void mma(Warp &warp, const Instruction &instruction, uint32_t lanes) {
  if (!all_lanes(instruction, lanes)) return;
  constexpr int kHalves = kSum / 8, kA = 4, kB = kA + 2 * kHalves, kC = kB + kHalves;
  Left a;
  Right b;
  // Registers of A: rows 0-7 and 8-15 of the first 8 of the sum, then of the second.
  for (int half = 0; half < kHalves; ++half) {
    for (int low = 0; low < 2; ++low) {
      const uint32_t *const from = warp.u32(instruction[kA + 2 * half + low]);
      for (int i = 0; i < 8; ++i) unpack<kBFloat16>(from + 4 * i, a.x[8 * low + i] + 8 * half);
    }
    uint16_t columns[8][8];
    std::memcpy(columns, warp.u32(instruction[kB + half]), sizeof columns);
    unpack_columns<kBFloat16>(columns, b.x + 8 * half);
  }
  alignas(32) float sums[4][kLanes];
  const float *c[4];
  float *d[4];
  for (int i = 0; i < 4; ++i) {
    c[i] = warp.f32(instruction[kC + i]);
    d[i] = sums[i];
  }
  multiply<kSum>(a, b, c, d);
  for (int i = 0; i < 4; ++i)
    if (!instruction[i].sink) std::memcpy(warp.f32(instruction[i]), sums[i], sizeof sums[i]);
}

// `detail` of ldmatrix and stmatrix.
constexpr uint64_t kGeneric = 1, kTransposed = 2;

// Where rows of matrices lie: lane 8m + i has the address of row i of matrix m.
void find_rows(const Warp &warp, const Instruction &instruction, const Operand &address, int matrices, bool write,
               std::byte *(&rows)[kLanes]) {
  for (int lane = 0; lane < 8 * matrices; ++lane) {
    const uint64_t at = warp.address(address, lane);
    rows[lane] = instruction.detail & kGeneric ? generic_memory(*warp.block, at, 16, write)
                                               : own_shared(*warp.block, at, 16);
  }
}

// PTX ISA, "Warp-level matrix load instruction: ldmatrix".
void ldmatrix(Warp &warp, const Instruction &instruction, uint32_t lanes) {
  if (!all_lanes(instruction, lanes)) return;
  const int matrices = instruction.count - 1;
  std::byte *rows[kLanes];
  find_rows(warp, instruction, instruction[matrices], matrices, false, rows);
  for (int m = 0; m < matrices; ++m) {
    uint16_t matrix[8][8], turned[8][8] = {};
    for (int i = 0; i < 8; ++i) std::memcpy(matrix[i], rows[8 * m + i], 16);
    if (instruction.detail & kTransposed) transpose(matrix, turned);
    if (!instruction[m].sink)
      std::memcpy(warp.u32(instruction[m]), instruction.detail & kTransposed ? turned : matrix, sizeof matrix);
  }
}

// PTX ISA, "Warp-level matrix store instruction: stmatrix".
void stmatrix(Warp &warp, const Instruction &instruction, uint32_t lanes) {
  if (!all_lanes(instruction, lanes)) return;
  const int matrices = instruction.count - 1;
  std::byte *rows[kLanes];
  find_rows(warp, instruction, instruction[0], matrices, true, rows);
  for (int m = 0; m < matrices; ++m) {
    uint16_t matrix[8][8], turned[8][8] = {};
    std::memcpy(matrix, warp.u32(instruction[1 + m]), sizeof matrix);
    if (instruction.detail & kTransposed) transpose(matrix, turned);
    for (int i = 0; i < 8; ++i)
      std::memcpy(rows[8 * m + i], instruction.detail & kTransposed ? turned[i] : matrix[i], 16);
  }
}

// PTX ISA, "Warp-level matrix transpose instruction: movmatrix".
void movmatrix(Warp &warp, const Instruction &instruction, uint32_t lanes) {
  if (!all_lanes(instruction, lanes)) return;
  uint16_t matrix[8][8], turned[8][8] = {};
  std::memcpy(matrix, warp.u32(instruction[1]), sizeof matrix);
  transpose(matrix, turned);
  std::memcpy(warp.u32(instruction[0]), turned, sizeof turned);
}

}  // namespace

Handler matrix_instruction(std::string_view opcode, Instruction &instruction) {
  if (opcode.starts_with("wgmma.")) return wgmma_instruction(opcode, instruction);
  if (opcode == "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32") return mma<false, 16>;
  if (opcode == "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32") return mma<true, 16>;
  if (opcode == "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32") return mma<false, 8>;
  if (opcode == "mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32") return mma<true, 8>;
  if (opcode == "movmatrix.sync.aligned.m8n8.trans.b16") return movmatrix;
  const bool load = opcode.starts_with("ldmatrix.sync.aligned.m8n8.x");
  if ((load || opcode.starts_with("stmatrix.sync.aligned.m8n8.x")) && opcode.ends_with(".b16")) {
    instruction.detail = (has(opcode, ".shared") ? 0 : kGeneric) | (has(opcode, ".trans") ? kTransposed : 0);
    return load ? ldmatrix : stmatrix;
  }
  return nullptr;
}

}  // namespace emulator
