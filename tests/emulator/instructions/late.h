// LASP_EMULATOR_ASYNC=late: what was asked for and is not performed yet. Each is performed at the last moment that
// PTX allows: when its group is waited for, when the mbarrier that it signals is tested in vain, or as its thread
// exits.
#pragma once

#include <functional>
#include <vector>

#include "instructions/operands.h"

namespace emulator {

using Job = std::function<void()>;

// Of a warp, in Warp::late. Groups are numbered as they are committed; those of copies are each lane's own.
struct LateWarp {
  struct Item {
    int lane = 0;
    uint64_t group = 0, order = 0;
    Job job;
  };
  struct Arrival {
    int lane = 0;
    uint64_t order = 0;
    std::byte *barrier = nullptr;
    const Instruction *instruction = nullptr;
  };
  struct Queue {
    std::vector<Item> items;
    uint64_t committed[kLanes] = {};
    void add(int lane, uint64_t order, Job job) { items.push_back({lane, committed[lane], order, std::move(job)}); }
    void commit(uint32_t lanes) {
      for_lanes(lanes, [&](int lane) { ++committed[lane]; });
    }
    // Those of the lanes' groups but the last `pending`.
    void wait(uint32_t lanes, uint64_t pending) {
      perform(
          [&](const Item &item) { return lanes >> item.lane & 1 && item.group + pending < committed[item.lane]; });
    }
    template <typename F>
    void perform(F chosen) {
      size_t kept = 0;
      for (size_t i = 0; i < items.size(); ++i) {
        if (chosen(items[i]))
          items[i].job();
        else if (kept++ != i)
          items[kept - 1] = std::move(items[i]);
      }
      items.resize(kept);
    }
  };
  Queue copies;                   // cp.async
  Queue stores;                   // bulk copies from shared memory
  Queue products;                 // wgmma, all as if of lane 0
  std::vector<Arrival> arrivals;  // cp.async.mbarrier.arrive
  uint64_t order = 0;
};

// Of a block, in Block::late: bulk copies into its shared memory, by the mbarrier that counts their bytes.
struct LateBlock {
  struct Item {
    std::byte *barrier = nullptr;
    Job job;
  };
  std::vector<Item> copies;
};

inline LateWarp &late(Warp &warp) {
  if (!warp.late) warp.late = std::make_shared<LateWarp>();
  return *warp.late;
}
inline LateBlock &late(Block &block) {
  if (!block.late) block.late = std::make_shared<LateBlock>();
  return *block.late;
}

// All that would signal the barrier, which a warp of the block tests in vain.
void perform_late(Block &block, std::byte *barrier);

}  // namespace emulator
