// Special registers, such as %tid.x: what a lane reads there.
#pragma once

#include "machine/machine.h"

namespace emulator {

enum class Special : uint8_t {
  kThread,
  kThreads,
  kBlock,
  kBlocks,
  kCluster,
  kBlockOfCluster,
  kBlocksOfCluster,  // each of an axis
  kRank,
  kRanks,
  kLane,
  kWarp,
  kDynamicShared,
  kLanesBelow,
  kLanesUpTo,
  kThisLane,
  kZero
};
struct SpecialRegister {
  Special which = Special::kZero;
  int axis = 0;
};
// Throws Fault where it is not known.
SpecialRegister special_register(std::string_view name);

// A lane's place. `thread` counts in the block.
struct Place {
  const Launch *launch;
  Dim3 block;
  uint32_t rank, thread;
};
uint64_t value_of(const SpecialRegister &special, const Place &place);

}  // namespace emulator
