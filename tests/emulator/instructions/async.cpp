// Copies that threads begin, cp.async, and instructions that a machine without reordering need not heed: fences and
// hints. mbarriers are in mbarrier.cpp, copies by the copy engine in bulk.cpp.
#include <thread>

#include "instructions/late.h"
#include "instructions/mbarrier.h"

namespace emulator {
namespace {

void nothing(Warp &, const Instruction &, uint32_t) {}
// Of this kernel's warps, and of other devices' kernels, which it may wait for.
void sleep(Warp &warp, const Instruction &, uint32_t) {
  warp.yield = true;
  std::this_thread::yield();
}
void create_policy(Warp &warp, const Instruction &instruction, uint32_t lanes) {
  for_lanes(lanes, [&](int lane) { warp.u64(instruction[0])[lane] = 0; });
}

// `detail` of cp.async.
constexpr uint64_t kGeneric = 1, kPolicy = 2, kLate = 4, kIncrement = 8;

// PTX ISA, "Data movement and conversion instructions: cp.async". [to], [from], bytes (, bytes of the source, or
// whether to ignore it) (, cache policy).
void copy(Warp &warp, const Instruction &instruction, uint32_t lanes) {
  const int count = instruction.count - (instruction.detail & kPolicy ? 1 : 0);
  for_lanes(lanes, [&](int lane) {
    const size_t bytes = value(warp, instruction[2], lane);
    size_t there = bytes;
    if (count > 3) {
      const uint64_t given = value(warp, instruction[3], lane);
      there = instruction[3].words == 0 ? (given ? 0 : bytes) : given;
    }
    if (bytes != 4 && bytes != 8 && bytes != 16) fail(instruction, "a size of a copy that PTX does not have");
    if (there > bytes) fail(instruction, "a source of more bytes than the copy has");
    const uint64_t from = warp.address(instruction[1], lane), at = warp.address(instruction[0], lane);
    if (from % bytes != 0) fail(instruction, "a misaligned source");
    std::byte *const to = instruction.detail & kGeneric ? generic_memory(*warp.block, at, bytes, true)
                                                        : own_shared(*warp.block, at, bytes);
    const auto job = [=] {
      std::byte data[16] = {};
      if (there == bytes)
        std::memcpy(data, global_memory(from, bytes, false), bytes);
      else
        for (size_t i = 0; i < there; ++i) data[i] = *global_memory(from + i, 1, false);
      std::memcpy(to, data, bytes);
    };
    if (instruction.detail & kLate)
      late(warp).copies.add(lane, late(warp).order++, job);
    else
      job();
  });
}

void commit(Warp &warp, const Instruction &, uint32_t lanes) { late(warp).copies.commit(lanes); }
void wait(Warp &warp, const Instruction &instruction, uint32_t lanes) {
  late(warp).copies.wait(lanes, value(warp, instruction[0], std::countr_zero(lanes)));
}
void wait_all(Warp &warp, const Instruction &, uint32_t lanes) {
  late(warp).copies.perform([&](const LateWarp::Item &item) { return lanes >> item.lane & 1; });
}

void arrive(std::byte *barrier, const Instruction &instruction) {
  MBarrier b(barrier, instruction);
  b.arrive(1);
  b.store();
}
// PTX ISA, "cp.async.mbarrier.arrive": without .noinc the phase waits for one more arrival, which is this one.
void arrive_after_copies(Warp &warp, const Instruction &instruction, uint32_t lanes) {
  for_lanes(lanes, [&](int lane) {
    const uint64_t at = warp.address(instruction[0], lane);
    std::byte *const barrier =
        instruction.detail & kGeneric ? generic_memory(*warp.block, at, 8, true) : own_shared(*warp.block, at, 8);
    if (instruction.detail & kIncrement) {
      MBarrier b(barrier, instruction);
      b.add_pending();
      b.store();
    }
    if (instruction.detail & kLate)
      late(warp).arrivals.push_back({lane, late(warp).order++, barrier, &instruction});
    else
      arrive(barrier, instruction);
  });
}

}  // namespace

void perform_late(Block &block, std::byte *barrier) {
  // A job may not add others, but an arrival's copies are taken from a queue: lists are cut before they are used.
  for (Warp &warp : block.warps) {
    if (!warp.late) continue;
    auto &arrivals = warp.late->arrivals;
    const auto rest = std::stable_partition(arrivals.begin(), arrivals.end(),
                                            [&](const LateWarp::Arrival &a) { return a.barrier != barrier; });
    const std::vector<LateWarp::Arrival> chosen(rest, arrivals.end());
    arrivals.erase(rest, arrivals.end());
    for (const LateWarp::Arrival &a : chosen) {
      warp.late->copies.perform(
          [&](const LateWarp::Item &item) { return item.lane == a.lane && item.order < a.order; });
      arrive(barrier, *a.instruction);
    }
  }
  if (!block.late) return;
  auto &copies = block.late->copies;
  for (size_t i = 0; i < copies.size();) {
    if (copies[i].barrier != barrier) {
      ++i;
      continue;
    }
    const Job job = std::move(copies[i].job);
    copies.erase(copies.begin() + static_cast<std::ptrdiff_t>(i));
    job();
  }
}

void finish_copies(Warp &warp, uint32_t lanes) {
  if (!warp.late) return;
  warp.late->stores.perform([&](const LateWarp::Item &item) { return lanes >> item.lane & 1; });
}

Handler async_instruction(std::string_view opcode, Instruction &instruction) {
  if (const Handler handler = mbarrier_instruction(opcode, instruction)) return handler;
  if (const Handler handler = bulk_instruction(opcode, instruction)) return handler;
  for (const char *const hint : {"fence.", "membar.", "griddepcontrol.", "setmaxnreg.", "prefetch.", "prefetchu."})
    if (opcode.starts_with(hint)) return nothing;
  if (opcode == "nanosleep.u32") return sleep;
  if (opcode.starts_with("createpolicy.")) return create_policy;

  const bool is_late = wants_late();
  if (opcode == "cp.async.commit_group") return is_late ? commit : nothing;
  if (opcode == "cp.async.wait_group") return is_late ? wait : nothing;
  if (opcode == "cp.async.wait_all") return is_late ? wait_all : nothing;
  instruction.detail = (has(opcode, ".shared") ? 0 : kGeneric) | (is_late ? kLate : 0);
  if (opcode.starts_with("cp.async.mbarrier.arrive.")) {
    if (!has(opcode, ".noinc")) instruction.detail |= kIncrement;
    return arrive_after_copies;
  }
  if (opcode.starts_with("cp.async.ca.shared") || opcode.starts_with("cp.async.cg.shared")) {
    if (has(opcode, ".cache_hint")) instruction.detail |= kPolicy;
    return copy;
  }
  return nullptr;
}

}  // namespace emulator
