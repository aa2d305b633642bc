// How a warp's lanes go on, part and meet again.
#include "machine/warp_run.h"

namespace emulator {
namespace {

constexpr int kTurn = 20000;  // instructions of a warp before others run

}  // namespace

WarpRun::WarpRun(Warp &warp, const Kernel &kernel)
    : warp_(warp), kernel_(kernel), registers_(kernel.words + 16, ~0u), local_(kLanes * kernel.local_bytes) {
  warp_.file = registers_.data();
  warp_.local = local_.data();
  warp_.local_bytes = kernel.local_bytes;
}

void WarpRun::begin(const Launch &launch, const Dim3 &block, size_t dynamic_at) {
  const int left = warp_.block->threads - kLanes * warp_.index;
  block_ = block;
  warp_.alive = left >= kLanes ? kAllLanes : (1u << left) - 1;
  warp_.again = warp_.yield = false;
  warp_.barrier = -1;
  warp_.cluster_arrivals = 0;
  warp_.late.reset();
  preset(launch, block, dynamic_at);
  groups_.assign(1, {0, warp_.alive});
}

void WarpRun::preset(const Launch &launch, const Dim3 &block, size_t dynamic_at) {
  const auto first_thread = static_cast<uint32_t>(kLanes * warp_.index);
  for (const Preset &p : kernel_.presets) {
    if (p.kind != Preset::kSpecial && !first_) continue;
    if (p.target.words == 0) {
      warp_.predicate(p.target) = p.value != 0 ? kAllLanes : 0;
      continue;
    }
    for (uint32_t lane = 0; lane < kLanes; ++lane) {
      const Place place{&launch, block, static_cast<uint32_t>(warp_.block->rank), first_thread + lane};
      const uint64_t value = value_of(p, place, dynamic_at, static_cast<int>(lane));
      if (p.target.words == 2) {
        warp_.u64(p.target)[lane] = value;
      } else {
        warp_.u32(p.target)[lane] = static_cast<uint32_t>(value);
      }
    }
  }
  first_ = false;
}

uint64_t WarpRun::value_of(const Preset &p, const Place &place, size_t dynamic_at, int lane) const {
  switch (p.kind) {
    case Preset::kConstant: return p.value;
    case Preset::kSpecial: return emulator::value_of(p.special, place);
    case Preset::kParameters: return reinterpret_cast<uint64_t>(place.launch->parameters.data()) + p.value;
    case Preset::kShared: return kSharedBase + p.value;
    case Preset::kDynamicShared: return kSharedBase + dynamic_at + p.value;
    case Preset::kLocal:
      return reinterpret_cast<uint64_t>(local_.data()) + static_cast<size_t>(lane) * kernel_.local_bytes + p.value;
  }
  return 0;
}

bool WarpRun::turn() {
  bool worked = false;
  for (int budget = kTurn; budget > 0 && !groups_.empty();) {
    const size_t next = furthest_back();
    if (next == groups_.size())
      throw Fault(kernel_.name + ": lanes wait for each other in different places:" + places());
    if (!advance(merge(next), budget, worked)) break;
  }
  warp_.again = warp_.yield = false;
  return worked;
}

// Of those that do not wait for others; their number where all do.
size_t WarpRun::furthest_back() {
  size_t best = groups_.size();
  for (int round = 0; round < 2 && best == groups_.size(); ++round) {
    for (size_t n = 0; n < groups_.size(); ++n) {
      Group &g = groups_[n];
      if (round == 1) g.passed = false;
      if (g.waiting || g.passed) continue;
      if (best == groups_.size() || g.pc < groups_[best].pc) best = n;
    }
  }
  return best;
}

// Groups at the same place are one; gives where `n` is then.
size_t WarpRun::merge(size_t n) {
  for (size_t other = 0; other < groups_.size();) {
    if (other != n && groups_[other].pc == groups_[n].pc) {
      groups_[n].lanes |= groups_[other].lanes;
      groups_.erase(groups_.begin() + static_cast<std::ptrdiff_t>(other));
      if (other < n) --n;
    } else {
      ++other;
    }
  }
  return n;
}

// Whether lanes that the instruction is for have not come yet.
bool WarpRun::must_wait(const Instruction &i, uint32_t lanes) const {
  if (i.meet == Instruction::kGroup || lanes == 0) return false;
  uint32_t wanted = warp_.alive;
  if (i.meet == Instruction::kMask) {
    const uint32_t *const masks = warp_.u32(i[i.count - 1]);
    uint32_t named = 0;
    for (int lane = 0; lane < kLanes; ++lane) {
      named |= lanes >> lane & 1 ? masks[lane] : 0;
    }
    wanted &= named;
  }
  return (lanes & wanted) != wanted;
}

// Runs a group until it has to be looked at anew; false where the warp's turn ends.
bool WarpRun::advance(size_t n, int &budget, bool &worked) {
  const bool alone = groups_.size() == 1;
  for (;;) {
    Group &group = groups_[n];
    const Instruction &i = kernel_.code[group.pc];
    uint32_t lanes = group.lanes;
    if (i.guarded) lanes &= i.guard_negated ? ~warp_.file[i.guard] : warp_.file[i.guard];
    --budget;
    if (i.run == branch) {
      if (!take_branch(group, i, lanes) || !alone || budget <= 0) return true;
    } else if (i.run == leave) {
      exit_lanes(n, lanes);
      worked = true;
      return true;
    } else if (must_wait(i, lanes)) {
      group.waiting = true;
      return true;
    } else if (!execute(group, i, lanes, worked)) {
      group.passed = true;
      return !alone && groups_.size() > 1 && !all_passed();
    } else if (!alone) {
      return true;
    }
  }
}

// False where only some of the lanes branch.
bool WarpRun::take_branch(Group &group, const Instruction &i, uint32_t lanes) {
  if (lanes == group.lanes) {
    group.pc = i.detail;
    return true;
  }
  ++group.pc;
  if (lanes == 0) return true;
  group.lanes &= ~lanes;
  groups_.push_back({i.detail, lanes});
  return false;
}

// False where it waits for other warps.
bool WarpRun::execute(Group &group, const Instruction &i, uint32_t lanes, bool &worked) {
  if (lanes != 0) {
    try {
      i.run(warp_, i, lanes);
    } catch (const Fault &fault) {
      fail(fault.what(), i.text);
    }
  }
  group.waits_at = group.pc;
  if (!warp_.again) ++group.pc;
  if (warp_.again || warp_.yield) {
    warp_.again = warp_.yield = false;
    return false;
  }
  worked = true;
  return true;
}

bool WarpRun::all_passed() const {
  for (const Group &g : groups_) {
    if (!g.passed && !g.waiting) return false;
  }
  return true;
}

void WarpRun::exit_lanes(size_t n, uint32_t lanes) {
  Group &group = groups_[n];
  finish_copies(warp_, lanes);
  warp_.alive &= ~lanes;
  group.lanes &= ~lanes;
  if (group.lanes == 0) {
    groups_.erase(groups_.begin() + static_cast<std::ptrdiff_t>(n));
  } else {
    ++group.pc;
  }
  for (Group &other : groups_) other.waiting = false;
}

static std::string text_of(const Dim3 &d) {
  return "(" + std::to_string(d.x) + ", " + std::to_string(d.y) + ", " + std::to_string(d.z) + ")";
}

std::string WarpRun::places() const {
  std::string text;
  for (const Group &g : groups_) {
    text += "\n    block " + text_of(block_) + ", warp " + std::to_string(warp_.index) + ": ";
    text += kernel_.code[g.passed ? g.waits_at : g.pc].text;
  }
  return text;
}

void WarpRun::fail(const std::string &why, const char *text) const {
  throw Fault(kernel_.name + ", block " + text_of(block_) + ", warp " + std::to_string(warp_.index) + ": " + why +
              "\n    " + text);
}

}  // namespace emulator
