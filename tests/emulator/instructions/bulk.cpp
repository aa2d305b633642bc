// Copies by the copy engine: cp.async.bulk, of bytes and of a tensor map's boxes, and cp.reduce.async.bulk.tensor.
// PTX ISA, "Data movement and conversion instructions: bulk copy", "tensor copy", "completion mechanisms".
#include "instructions/late.h"
#include "instructions/mbarrier.h"
#include "instructions/tensor_box.h"

namespace emulator {
namespace {

// `detail`; from bit 8 the rank of a tensor.
constexpr uint64_t kMulticast = 1, kLate = 2, kAdd = 4, kToShared = 8, kFromShared = 16;
int rank_of(const Instruction &instruction) { return static_cast<int>(instruction.detail >> 8); }

std::byte *aligned_shared(const Block &block, uint64_t address, size_t bytes, size_t alignment,
                          const Instruction &instruction) {
  if (without_rank(address) % alignment != 0) fail(instruction, "misaligned shared memory");
  return shared_span(block, address, bytes, instruction);
}
size_t bulk_bytes(const Warp &warp, const Instruction &instruction, const Operand &o, int lane) {
  const size_t bytes = value(warp, o, lane);
  if (bytes % 16 != 0) fail(instruction, "a size that is no multiple of 16 bytes");
  return bytes;
}

// A copy into the shared memory of each block that the instruction names, where it counts bytes off the mbarrier.
// `f`(block, address there) returns what is to be done there.
template <typename F>
void copy_to_blocks(Warp &warp, const Instruction &instruction, int lane, const Operand &to, const Operand &barrier,
                    const Operand *mask, size_t bytes, F f) {
  const uint64_t address = warp.address(to, lane), at = warp.address(barrier, lane);
  const auto into = [&](Block &block, uint64_t address_there, uint64_t barrier_there) {
    std::byte *const counter = shared_memory(block, barrier_there, 8);
    const auto copy = f(block, address_there);
    const auto job = [copy, counter, bytes, &instruction] {
      copy();
      MBarrier b(counter, instruction);
      b.complete(bytes);
      b.store();
    };
    if (instruction.detail & kLate)
      late(block).copies.push_back({counter, job});
    else
      job();
  };
  if (!mask) {
    Block &block = block_at(*warp.block, address, instruction);
    if (&block != &block_at(*warp.block, at, instruction)) fail(instruction, "an mbarrier of another block");
    return into(block, without_rank(address), without_rank(at));
  }
  const auto blocks = static_cast<uint16_t>(value(warp, *mask, lane));
  for_lanes(blocks, [&](int rank) {
    const uint64_t of_rank = static_cast<uint64_t>(rank + 1) << 24;
    into(block_at(*warp.block, of_rank, instruction), without_rank(address), without_rank(at));
  });
}

// A copy out of shared memory, of the thread's bulk group.
void copy_from_block(Warp &warp, const Instruction &instruction, int lane, const auto &job) {
  if (instruction.detail & kLate)
    late(warp).stores.add(lane, 0, job);
  else
    job();
}

// [to], [from], bytes, [mbarrier] (, blocks) (, cache policy); or [to], [from], bytes (, cache policy).
void bulk(Warp &warp, const Instruction &instruction, uint32_t lanes) {
  for_lanes(lanes, [&](int lane) {
    const size_t bytes = bulk_bytes(warp, instruction, instruction[2], lane);
    const uint64_t to = warp.address(instruction[0], lane), from = warp.address(instruction[1], lane);
    const bool to_shared = instruction.detail & kToShared, from_shared = instruction.detail & kFromShared;
    if ((!from_shared && from % 16 != 0) || (!to_shared && to % 16 != 0))
      fail(instruction, "misaligned global memory");
    if (bytes == 0) return;
    std::byte *const source = from_shared ? aligned_shared(*warp.block, from, bytes, 16, instruction) : nullptr;
    if (!to_shared) {
      copy_from_block(warp, instruction, lane, [to, source, bytes, &instruction] {
        std::memcpy(GlobalSpan()(to, bytes, true, instruction), source, bytes);
      });
      return;
    }
    const Operand *const mask = instruction.detail & kMulticast ? &instruction[4] : nullptr;
    copy_to_blocks(
        warp, instruction, lane, instruction[0], instruction[3], mask, bytes, [&](Block &block, uint64_t address) {
          std::byte *const target = aligned_shared(block, address, bytes, 16, instruction);
          return [target, source, from, bytes, &instruction] {
            const std::byte *const data = source ? source : GlobalSpan()(from, bytes, false, instruction);
            std::memmove(target, data, bytes);
          };
        });
  });
}

TensorBox box_at(const Warp &warp, const Instruction &instruction, int lane, int map) {
  TensorBox box(*warp.block, warp.address(instruction[map], lane), rank_of(instruction), instruction);
  for (int d = 0; d < rank_of(instruction); ++d)
    box.coordinate(d) = signed_value(warp, instruction[map + 1 + d], lane);
  return box;
}

// [to], [map, {coordinates}], [mbarrier] (, blocks) (, cache policy).
void load_box(Warp &warp, const Instruction &instruction, uint32_t lanes) {
  for_lanes(lanes, [&](int lane) {
    const TensorBox box = box_at(warp, instruction, lane, 1);
    const Operand &barrier = instruction[2 + rank_of(instruction)];
    const Operand *const mask = instruction.detail & kMulticast ? &barrier + 1 : nullptr;
    copy_to_blocks(warp, instruction, lane, instruction[0], barrier, mask, box.bytes(),
                   [&](Block &block, uint64_t address) {
                     std::byte *const target = aligned_shared(block, address, box.bytes(), 128, instruction);
                     return [=] { box.perform(TensorBox::Action::kLoad, address, target); };
                   });
  });
}

// [map, {coordinates}], [from] (, cache policy).
void store_box(Warp &warp, const Instruction &instruction, uint32_t lanes) {
  for_lanes(lanes, [&](int lane) {
    const TensorBox box = box_at(warp, instruction, lane, 0);
    const uint64_t address = warp.address(instruction[1 + rank_of(instruction)], lane);
    std::byte *const source = aligned_shared(*warp.block, address, box.bytes(), 128, instruction);
    const auto action = instruction.detail & kAdd ? TensorBox::Action::kAdd : TensorBox::Action::kStore;
    copy_from_block(warp, instruction, lane, [=] { box.perform(action, address, source); });
  });
}

void nothing(Warp &, const Instruction &, uint32_t) {}
void commit(Warp &warp, const Instruction &, uint32_t lanes) { late(warp).stores.commit(lanes); }
void wait(Warp &warp, const Instruction &instruction, uint32_t lanes) {
  late(warp).stores.wait(lanes, value(warp, instruction[0], std::countr_zero(lanes)));
}

}  // namespace

Handler bulk_instruction(std::string_view opcode, Instruction &instruction) {
  const bool is_late = wants_late(), adds = opcode.starts_with("cp.reduce.async.bulk.tensor.");
  if (!adds && !opcode.starts_with("cp.async.bulk.")) return nullptr;
  if (opcode == "cp.async.bulk.commit_group") return is_late ? commit : nothing;
  if (opcode == "cp.async.bulk.wait_group" || opcode == "cp.async.bulk.wait_group.read")
    return is_late ? wait : nothing;
  if (opcode.starts_with("cp.async.bulk.prefetch.")) return nothing;

  instruction.detail =
      (is_late ? kLate : 0) | (adds ? kAdd : 0) | (has(opcode, ".multicast::cluster") ? kMulticast : 0);
  // What the instruction is without hints, and the rank of a tensor.
  std::string_view rest = opcode.substr(opcode.find(".bulk.") + 6);
  rest = rest.substr(0, std::min(rest.find(".multicast::cluster"), rest.find(".L2::cache_hint")));
  const bool is_tensor = rest.starts_with("tensor.");
  if (is_tensor) {
    if (rest.size() < 10 || rest[7] < '1' || rest[7] > '5' || rest[8] != 'd') return nullptr;
    instruction.detail |= static_cast<uint64_t>(rest[7] - '0') << 8;
    rest = rest.substr(10);
  }
  constexpr std::string_view kCounted = ".mbarrier::complete_tx::bytes", kGrouped = ".bulk_group";
  if (rest.ends_with(kCounted) && !adds) {
    rest.remove_suffix(kCounted.size());
    if (is_tensor && rest.ends_with(".tile")) rest.remove_suffix(5);
    instruction.detail |= kToShared;
    if (rest == "shared::cluster.global" || rest == "shared::cta.global") return is_tensor ? load_box : bulk;
    if (rest != "shared::cluster.shared::cta" || is_tensor) return nullptr;
    instruction.detail |= kFromShared;
    return bulk;
  }
  if (!rest.ends_with(kGrouped)) return nullptr;
  rest.remove_suffix(kGrouped.size());
  if (is_tensor && rest.ends_with(".tile")) rest.remove_suffix(5);
  instruction.detail |= kFromShared;
  if (adds) return rest == "global.shared::cta.add" ? store_box : nullptr;
  return rest == "global.shared::cta" ? (is_tensor ? store_box : bulk) : nullptr;
}

}  // namespace emulator
