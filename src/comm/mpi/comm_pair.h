// The communicators of one group: one for data, one for control messages, both duplicates of the caller's.
//
// MPI_Comm_free is collective, and lasp_comm_destroy is not: ranks may destroy their ends in any order, or be dead.
// So destroying an end only retires its pair. Retired pairs are remembered on the caller's communicator (as an
// attribute) and freed where MPI brings the same ranks together anyway: when the next pair of the same communicator
// is made, for those that every rank has retired, and when the caller frees that communicator. A pair whose group
// broke is never freed, since a peer may be gone; MPI_Finalize releases it.
#pragma once

#include <mpi.h>

#include <atomic>
#include <memory>

namespace lasp::mpi {

struct CommPair {
  MPI_Comm data = MPI_COMM_NULL;
  MPI_Comm control = MPI_COMM_NULL;
  // Set by the end when it is destroyed with nothing under way; a broken group's is never set.
  std::atomic<bool> retired{false};
};

// Collective over `comm`. Errors on the new communicators are returned, never fatal. Throws MpiFailure.
std::shared_ptr<CommPair> make_comm_pair(MPI_Comm comm);

}  // namespace lasp::mpi
