// A block of one warp without a program, for tests of handlers: registers are handed out, instructions run at once.
#pragma once

#include <gtest/gtest.h>

#include <deque>
#include <initializer_list>

#include "instructions/late.h"

namespace emulator {

class Rig {
 public:
  explicit Rig(int rank = 0, Cluster *cluster = nullptr) : file_(1 << 16) {
    block.shared.resize(64 * 1024);
    block.rank = rank;
    block.cluster = cluster ? cluster : &own_;
    block.cluster->blocks.push_back(&block);
    block.warps.resize(1);
    warp().block = &block;
    warp().file = file_.data();
  }
  Warp &warp() { return block.warps[0]; }
  Operand words(int count) {
    Operand o;
    o.slot = static_cast<uint32_t>(used_);
    o.words = static_cast<uint8_t>(count);
    used_ += count ? kLanes * count : 2;  // which keeps those of two words aligned
    EXPECT_LE(static_cast<size_t>(used_), file_.size());
    return o;
  }
  Operand constant(uint64_t value, int count = 1) {
    const Operand o = words(count);
    for (int lane = 0; lane < kLanes; ++lane) set(o, lane, value);
    return o;
  }
  Operand predicate(uint32_t bits) {
    const Operand o = words(0);
    warp().predicate(o) = bits;
    return o;
  }
  static Operand sink() {
    Operand o;
    o.sink = true;
    return o;
  }
  void set(const Operand &o, int lane, uint64_t value) {
    if (o.words == 2)
      warp().u64(o)[lane] = value;
    else
      warp().u32(o)[lane] = static_cast<uint32_t>(value);
  }
  // Instructions are kept, as late ones refer to them.
  void run(const char *opcode, std::vector<Operand> operands, uint32_t lanes = kAllLanes) {
    kept_.push_back(std::move(operands));
    Instruction &i = instructions_.emplace_back();
    i.text = opcode;
    i.operands = kept_.back().data();
    i.count = static_cast<uint8_t>(kept_.back().size());
    i.run = matrix_instruction(opcode, i);
    if (!i.run) i.run = async_instruction(opcode, i);
    ASSERT_NE(i.run, nullptr) << opcode;
    i.run(warp(), i, lanes);
  }
  // True: the phase of that parity is over.
  bool test(uint64_t barrier, int parity) {
    const Operand done = predicate(0);
    warp().yield = false;
    run("mbarrier.try_wait.parity.shared::cta.b64",
        {done, constant(barrier), constant(static_cast<uint64_t>(parity))});
    EXPECT_EQ(warp().yield, warp().predicate(done) == 0);
    return warp().predicate(done) == kAllLanes;
  }
  // Elements of shared memory, by the byte from the block's first.
  uint16_t &half(size_t at) { return *reinterpret_cast<uint16_t *>(block.shared.data() + at); }

  Block block;

 private:
  Cluster own_;
  std::vector<uint32_t> file_;
  int used_ = 0;
  std::deque<std::vector<Operand>> kept_;
  std::deque<Instruction> instructions_;
};

// Memory that kernels may use.
template <typename T>
class Memory {
 public:
  explicit Memory(size_t count)
      : data_(static_cast<T *>(std::aligned_alloc(256, (count * sizeof(T) + 255) / 256 * 256))) {
    std::fill_n(data_, count, T{});
    add_memory(data_, count * sizeof(T));
  }
  ~Memory() {
    remove_memory(data_);
    std::free(data_);
  }
  Memory(const Memory &) = delete;
  Memory &operator=(const Memory &) = delete;
  T &operator[](size_t i) { return data_[i]; }
  uint64_t address() const { return reinterpret_cast<uint64_t>(data_); }

 private:
  T *data_;
};

// Sets the mode for as long as it lives.
struct Late {
  explicit Late(bool late) { setenv("LASP_EMULATOR_ASYNC", late ? "late" : "", 1); }
  ~Late() { unsetenv("LASP_EMULATOR_ASYNC"); }
};

}  // namespace emulator
