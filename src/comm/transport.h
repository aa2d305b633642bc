// The transport seam: what the engine knows of communication. It is the public table of functions, lasp_transport,
// so that the library's own transports and a caller's are the same thing to the engine.
//
// The transports made here, and liblasp_mpi's, settle what the public contract leaves to each transport:
// - Every failure that concerns the group is reported by `wait`, which alone can name the lost rank. In a broken
//   group `send` and `receive` still succeed, `test` says done, and `wait` reports at once how the group broke.
// - A group breaks once; the first cause is the one that every rank is told.
// - A `wait` that fails never frees the request: cancel it. Memory is untouched from that failure on, so that a
//   request nobody cancels costs its few bytes until `destroy`, and nothing else.
#pragma once

#include <memory>
#include <vector>

#include "lasp/lasp.h"

namespace lasp {

// One rank's end of a group. Whoever holds it calls table.destroy(user), once.
struct TransportEnd {
  lasp_transport table;
  void *user;
};

// A group of one. It has no peers: send and receive refuse.
TransportEnd make_self_transport();
// A place in a group without a transport: its functions refuse too.
TransportEnd make_detached_transport(int32_t rank, int32_t nranks);

// A group of `nranks` threads of this process; element r is rank r's end. Ends may be destroyed in any order, by
// any thread. Throws std::bad_alloc.
std::vector<TransportEnd> make_thread_transport(int nranks);

// A borrowed NCCL communicator. The table says rank and size; its functions refuse, since the messages are between
// device memories and go by cuda/. Throws Error: NCCL not found or too old, or not built.
struct NcclGroup;
struct NcclEnd {
  lasp_transport table;
  std::shared_ptr<const NcclGroup> group;
};
NcclEnd make_nccl_transport(struct ncclComm *nccl, const lasp_nccl_functions *functions);

}  // namespace lasp
