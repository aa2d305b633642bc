// mbarrier instructions: PTX ISA, "Parallel synchronization and communication instructions: mbarrier".
#include "instructions/mbarrier.h"
#include "instructions/late.h"

namespace emulator {
namespace {

// `detail`.
constexpr uint64_t kGeneric = 1, kExpect = 2, kNoComplete = 4, kDrop = 8, kParity = 16, kLate = 32;

std::byte *barrier_at(const Warp &warp, const Instruction &instruction, const Operand &o, int lane) {
  const uint64_t address = warp.address(o, lane);
  return instruction.detail & kGeneric ? generic_memory(*warp.block, address, 8, true)
                                       : own_shared(*warp.block, address, 8);
}

void init(Warp &warp, const Instruction &instruction, uint32_t lanes) {
  for_lanes(lanes, [&](int lane) {
    const uint64_t count = value(warp, instruction[1], lane);
    if (count == 0 || count > MBarrier::kMost) fail(instruction, "a count of arrivals out of range");
    const uint64_t word = MBarrier::first_word(count);
    std::memcpy(barrier_at(warp, instruction, instruction[0], lane), &word, sizeof word);
  });
}
void invalidate(Warp &warp, const Instruction &instruction, uint32_t lanes) {
  for_lanes(lanes, [&](int lane) { std::memset(barrier_at(warp, instruction, instruction[0], lane), 0, 8); });
}

// state, [barrier] (, count); with .expect_tx: state, [barrier], bytes.
void arrive(Warp &warp, const Instruction &instruction, uint32_t lanes) {
  const bool expects = instruction.detail & kExpect;
  for_lanes(lanes, [&](int lane) {
    MBarrier barrier(barrier_at(warp, instruction, instruction[1], lane), instruction);
    const uint64_t given = instruction.count > 2 ? value(warp, instruction[2], lane) : 1, before = barrier.word();
    const uint64_t count = expects ? 1 : given;
    if (expects) barrier.expect(given);
    if (instruction.detail & kDrop) barrier.drop(count);
    barrier.arrive(count, !(instruction.detail & kNoComplete));
    barrier.store();
    if (!instruction[0].sink) warp.u64(instruction[0])[lane] = before;
  });
}
void expect(Warp &warp, const Instruction &instruction, uint32_t lanes) {
  for_lanes(lanes, [&](int lane) {
    MBarrier barrier(barrier_at(warp, instruction, instruction[0], lane), instruction);
    barrier.expect(value(warp, instruction[1], lane));
    barrier.store();
  });
}
void complete(Warp &warp, const Instruction &instruction, uint32_t lanes) {
  for_lanes(lanes, [&](int lane) {
    MBarrier barrier(barrier_at(warp, instruction, instruction[0], lane), instruction);
    barrier.complete(value(warp, instruction[1], lane));
    barrier.store();
  });
}

// done, [barrier], state or parity (, how long to wait at most).
void test(Warp &warp, const Instruction &instruction, uint32_t lanes) {
  uint32_t done = 0;
  uint64_t last_phase = 0;
  std::byte *last = nullptr;
  bool is_done = false;
  for_lanes(lanes, [&](int lane) {
    std::byte *const at = barrier_at(warp, instruction, instruction[1], lane);
    const uint64_t phase = value(warp, instruction[2], lane);
    if (at != last || phase != last_phase) {  // or it is the one before once more
      last = at;
      last_phase = phase;
      const bool parity = instruction.detail & kParity ? phase & 1 : MBarrier::parity_of(phase);
      is_done = MBarrier(at, instruction).parity() != parity;
      if (!is_done && instruction.detail & kLate) {
        perform_late(*warp.block, at);
        is_done = MBarrier(at, instruction).parity() != parity;
      }
    }
    done |= uint32_t{is_done} << lane;
  });
  if (!instruction[0].sink) {
    uint32_t &predicate = warp.predicate(instruction[0]);
    predicate = (predicate & ~lanes) | done;
  }
  if (done != lanes) warp.yield = true;
}

void pending_count(Warp &warp, const Instruction &instruction, uint32_t lanes) {
  for_lanes(lanes, [&](int lane) {
    warp.u32(instruction[0])[lane] = MBarrier::pending_of(value(warp, instruction[1], lane));
  });
}

}  // namespace

Handler mbarrier_instruction(std::string_view opcode, Instruction &instruction) {
  if (!opcode.starts_with("mbarrier.") || !opcode.ends_with(".b64")) return nullptr;
  const std::string_view rest = opcode.substr(std::string_view("mbarrier.").size());
  const auto is = [&](std::string_view verb) { return rest.starts_with(verb) && rest[verb.size()] == '.'; };
  instruction.detail = (has(rest, ".shared") ? 0 : kGeneric) | (has(rest, ".expect_tx") ? kExpect : 0) |
                       (has(rest, ".noComplete") ? kNoComplete : 0) | (is("arrive_drop") ? kDrop : 0) |
                       (has(rest, ".parity") ? kParity : 0) | (wants_late() ? kLate : 0);
  if (is("init")) return init;
  if (is("inval")) return invalidate;
  if (is("arrive") || is("arrive_drop")) return arrive;
  if (is("expect_tx")) return expect;
  if (is("complete_tx")) return complete;
  if (is("test_wait") || is("try_wait")) return test;
  if (is("pending_count")) return pending_count;
  return nullptr;
}

}  // namespace emulator
