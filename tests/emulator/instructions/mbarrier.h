// An mbarrier, in the 64 bits that PTX leaves to the implementation: from bit 0 the arrivals that its phase still
// waits for, from 20 those of each phase, from 40 the bytes that are still to come, with a sign, and 63 is the
// phase's parity. PTX ISA, "Parallel synchronization and communication instructions: mbarrier".
#pragma once

#include "instructions/operands.h"

namespace emulator {

class MBarrier {
 public:
  static constexpr uint32_t kMost = (1 << 20) - 1;  // arrivals, and bytes either way

  MBarrier(std::byte *at, const Instruction &instruction) : at_(at), instruction_(instruction) {
    uint64_t word;
    std::memcpy(&word, at, sizeof word);
    pending_ = word & kMost;
    expected_ = word >> 20 & kMost;
    bytes_ = static_cast<int32_t>(word >> 40 & 0x7fffff) << 9 >> 9;
    parity_ = word >> 63;
    if (expected_ == 0) fail(instruction, "no mbarrier has been initialized there");
  }
  static uint64_t first_word(uint64_t arrivals) { return arrivals | arrivals << 20; }
  static uint32_t pending_of(uint64_t word) { return word & kMost; }
  static bool parity_of(uint64_t word) { return word >> 63; }
  uint64_t word() const {
    return uint64_t{pending_} | uint64_t{expected_} << 20 | uint64_t(bytes_ & 0x7fffff) << 40 |
           uint64_t{parity_} << 63;
  }
  bool parity() const { return parity_; }

  void expect(uint64_t bytes) { add_bytes(static_cast<int64_t>(bytes)); }
  // Bytes have come. It may complete the phase.
  void complete(uint64_t bytes) {
    add_bytes(-static_cast<int64_t>(bytes));
    advance();
  }
  void arrive(uint64_t count, bool may_complete = true) {
    if (count > pending_) fail(instruction_, "more arrivals at an mbarrier than its phase has");
    pending_ -= static_cast<uint32_t>(count);
    if (may_complete)
      advance();
    else if (pending_ == 0)
      fail(instruction_, "an arrival without completion completes a phase");
  }
  // One more, or as many less in each phase to come.
  void add_pending() {
    if (++pending_ > kMost) fail(instruction_, "too many arrivals");
  }
  void drop(uint64_t count) {
    if (count > expected_) fail(instruction_, "more arrivals dropped than an mbarrier has");
    expected_ -= static_cast<uint32_t>(count);
  }
  void store() const {
    const uint64_t word = this->word();
    std::memcpy(at_, &word, sizeof word);
  }

 private:
  void add_bytes(int64_t bytes) {
    const int64_t sum = bytes_ + bytes;
    if (sum > kMost || sum < -int64_t{kMost}) fail(instruction_, "an mbarrier's bytes are out of range");
    bytes_ = static_cast<int32_t>(sum);
  }
  void advance() {
    if (pending_ != 0 || bytes_ != 0) return;
    pending_ = expected_;
    parity_ = !parity_;
  }

  std::byte *at_;
  const Instruction &instruction_;
  uint32_t pending_, expected_;
  int32_t bytes_;
  bool parity_;
};

}  // namespace emulator
