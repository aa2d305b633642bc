// The exchange as a pure list of steps: who sends which map to whom, and what is composed. No memory, no transport:
// testable alone. An exchange is an exclusive prefix scan of affine maps S_out = M S_in + s over the runs of tokens
// in order; the backward pass is the same with them counted from the other end.
#pragma once

#include <lasp/lasp.h>

#include <cstdint>
#include <span>
#include <vector>

#include "core/affine_map.h"

namespace lasp {

enum class Op : int32_t {
  kSend,     // slot -> peer
  kReceive,  // peer -> slot
  kCopy,     // earlier -> slot: a message between two positions of one rank
  kCompose   // slot = later after earlier
};

// Slots hold maps. Positions are runs of tokens counted in the scan's direction: where each rank has one, ranks.
struct ExchangeStep {
  Op op;
  int32_t at = 0;     // this position
  int32_t peer = -1;  // position; send and receive
  int32_t slot = 0;
  int32_t later = -1;  // compose: slots; `slot` may equal `later`
  int32_t earlier = -1;
  bool transition = false;        // send, receive: the transition goes along when it is not known locally.
                                  // compose: the result's transition is needed too
  bool alone = false;             // send, receive: the transition goes, of whole heads, and no state
  int32_t first = -1, last = -1;  // receive: the map covers the positions [first, last]
  int64_t begin = 0, end = 0;     // slices of the map; all of them but for the all-scan schedule
  // Steps of one round may go at once: a message has the same round on both sides, and what it hands on has come in
  // an earlier one. Compositions end the round that brings what they read. Lists are in the order of rounds, and in
  // each sends and copies come first. So no position waits for ever, in whatever order it takes a round's messages.
  int32_t round = 0;
};

struct StepList {
  std::vector<ExchangeStep> steps;
  int32_t slots = 0;
  // One of each for a position:
  std::vector<int32_t> own;        // the slot of its own map; -1: nobody wants it (the last position)
  std::vector<int32_t> result;     // the slot whose state is the incoming one; -1: nothing comes in (position 0)
  std::vector<Slices> parts = {};  // by slot: the heads that it holds; none: each holds whole maps
};

// Of one position. Maps are cut into `pieces` for the all-scan schedule. 0 <= position < positions.
StepList make_steps(int32_t schedule, int32_t position, int32_t positions, const AffineMap &map, int32_t pieces);

// Those of several positions of one rank, in their order, as one list.
StepList join_lists(std::span<const StepList> lists);

// The receives of a list, by round, sender and receiver: two ranks' messages match in the order in which they are
// sent, and that is a list's.
std::vector<size_t> order_of_receives(const StepList &list);

}  // namespace lasp
