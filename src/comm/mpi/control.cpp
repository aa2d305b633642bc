// Sending and receiving control messages.
#include "comm/mpi/control.h"

#include <cstring>

#include "comm/mpi/mpi_call.h"

namespace lasp::mpi {
namespace {

constexpr int kTag = 0;
constexpr int kWords = sizeof(ControlMessage) / sizeof(int32_t);
static_assert(sizeof(ControlMessage) == kWords * sizeof(int32_t));

bool has_left(Orphan &slot) {
  int done = 0;
  check(MPI_Test(&slot.request, &done, MPI_STATUS_IGNORE));
  return done != 0;
}

}  // namespace

void ControlChannel::send(int32_t peer, const ControlMessage &message) {
  Orphan *slot = nullptr;
  for (Orphan &candidate : slots_) {
    if (has_left(candidate)) {
      slot = &candidate;
      break;
    }
  }
  if (!slot) {
    slots_.push_back({MPI_REQUEST_NULL, pool_.take(sizeof message)});
    slot = &slots_.back();
  }
  std::memcpy(slot->staging.memory, &message, sizeof message);
  check(MPI_Isend(slot->staging.memory, kWords, MPI_INT32_T, peer, kTag, comm_, &slot->request));
}

bool ControlChannel::receive(ControlMessage *message, int32_t *source) {
  int waiting = 0;
  MPI_Status status;
  check(MPI_Iprobe(MPI_ANY_SOURCE, kTag, comm_, &waiting, &status));
  if (!waiting) return false;
  *source = status.MPI_SOURCE;
  check(MPI_Recv(message, kWords, MPI_INT32_T, *source, kTag, comm_, MPI_STATUS_IGNORE));
  return true;
}

bool ControlChannel::flushed() {
  bool all = true;
  for (Orphan &slot : slots_) all = has_left(slot) && all;
  return all;
}

void ControlChannel::abandon(std::vector<Orphan> *orphans) {
  for (Orphan &slot : slots_) {
    int done = 0;
    if (MPI_Test(&slot.request, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && done) {
      pool_.give_back(slot.staging);
    } else {
      orphans->push_back(slot);
    }
  }
  slots_.clear();
}

}  // namespace lasp::mpi
