// An NCCL that is played: one rank of a group of which nobody else is there, so that one GPU and no NCCL are
// enough.
#pragma once

#include <lasp/lasp.h>

#include <cstddef>

namespace gpu {

struct PlayedNccl {
  int32_t rank = 0, nranks = 1;
  // What comes in; null: nothing is enqueued, and the memory stays as it is.
  void (*receive)(void *to, size_t bytes, lasp_stream stream) = nullptr;
  int32_t groups = 0;  // so far, each a launch of NCCL's; a message alone is one too
};

// All ranks have this one's problem. `nccl` outlives the comm. Null where the library refuses.
lasp_comm *played_comm(PlayedNccl &nccl);

}  // namespace gpu
