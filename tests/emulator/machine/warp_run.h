// A warp on its way through a kernel: its lanes together while they are at one place, and otherwise group by group,
// the group that is furthest back first.
#pragma once

#include "machine/program.h"

namespace emulator {

class WarpRun {
 public:
  WarpRun(Warp &warp, const Kernel &kernel);
  WarpRun(const WarpRun &) = delete;

  // At the kernel's beginning. Special registers are set, and, the first time, constants.
  void begin(const Launch &launch, const Dim3 &block, size_t dynamic_at);
  bool ended() const { return groups_.empty(); }
  // Some of its instructions. True where one did more than ask whether a wait is over.
  bool turn();
  // Where its lanes are, for messages: a line each.
  std::string places() const;
  const std::vector<std::byte> &local() const { return local_; }

 private:
  struct Group {
    size_t pc;
    uint32_t lanes;
    bool waiting = false;  // for other lanes of the warp
    bool passed = false;   // it waits for something else: others first
    size_t waits_at = 0;   // where
  };

  void preset(const Launch &launch, const Dim3 &block, size_t dynamic_at);
  uint64_t value_of(const Preset &preset, const Place &place, size_t dynamic_at, int lane) const;
  size_t furthest_back();
  size_t merge(size_t n);
  bool advance(size_t n, int &budget, bool &worked);
  bool all_passed() const;
  bool must_wait(const Instruction &i, uint32_t lanes) const;
  bool take_branch(Group &group, const Instruction &i, uint32_t lanes);
  bool execute(Group &group, const Instruction &i, uint32_t lanes, bool &worked);
  void exit_lanes(size_t n, uint32_t lanes);
  [[noreturn]] void fail(const std::string &why, const char *text) const;

  Warp &warp_;
  const Kernel &kernel_;
  std::vector<uint32_t> registers_;
  std::vector<std::byte> local_;
  std::vector<Group> groups_;
  Dim3 block_;
  bool first_ = true;
};

}  // namespace emulator
