// LASP_SCHEDULE_RELAY, the ring of LASP (arXiv 2404.02882) without work ahead of the message: a rank waits for the
// state that enters its tokens, computes them as a group of one would, with that state as the initial one, and
// sends the final state to the next rank. The backward pass does so from the last rank to the first, with
// gradients.
//
// The passes are those of a device without an exchange. All that a relay adds are messages and, in the state cache,
// the state that came in: to the backward pass it is the initial state. Ranks without tokens take no part.
#pragma once

#include <cstdint>
#include <vector>

#include "core/problem.h"
#include "core/token_partition.h"
#include "core/workspace.h"

namespace lasp {

struct StateMessage;
enum class Pass;

// The part of one rank.
struct Relay {
  Relay(const Problem &problem, const TokenRanges &ranges, int32_t rank);

  // Whom a pass's state comes from, and whom it goes to; -1: nobody.
  int32_t from(Pass pass) const;
  int32_t to(Pass pass) const;
  uint64_t state_bytes() const { return static_cast<uint64_t>(floats) * sizeof(float); }
  // All messages of this rank, without their memory.
  std::vector<StateMessage> messages() const;

  // Where the states of a pass lie. `cache` is null only in a forward pass without a state cache.
  struct States {
    float *entering = nullptr, *leaving = nullptr;  // null: there is none
    float *initial = nullptr;                       // what entered the forward pass; null where nothing did
  };
  States place(Pass pass, Carver &workspace, Carver *cache) const;

  int32_t before = -1, after = -1;    // the ranks that hold the tokens before this rank's and after them
  bool begins = false, ends = false;  // this rank reads the caller's initial_state (writes its final_state)
  int64_t floats = 0;                 // of the states of all rows
};

}  // namespace lasp
