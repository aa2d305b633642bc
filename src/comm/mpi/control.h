// Control messages between the ranks of one group, on a communicator of their own: who waits for whom, and how the
// group broke. Small enough that MPI sends them at once, whatever the receiver does; sending never blocks.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <vector>

#include "comm/mpi/staging.h"

namespace lasp::mpi {

struct ControlMessage {
  enum Kind : int32_t {
    kQuery = 1,  // whom do you wait for?   detail: a serial number
    kReply,      // the answer              detail: the query's; rank: the one awaited, or -1 for nobody
    kBroken      // the group is broken     detail: the status; rank: the lost one, or -1
  };
  int32_t kind = 0;
  int32_t detail = 0;
  int32_t rank = -1;
  // Of the messages that they wait for, or -1: the sender's, and in kBroken the lost rank's.
  int32_t tag = -1;
  int32_t lost_tag = -1;
};

class ControlChannel {
 public:
  ControlChannel(MPI_Comm comm, StagingPool &pool) : comm_(comm), pool_(pool) {}

  void send(int32_t peer, const ControlMessage &message);
  // Takes the next message that has come; false when there is none.
  bool receive(ControlMessage *message, int32_t *source);
  // True when everything sent has left.
  bool flushed();
  // Called last: hands over the messages that have not left, and gives the others' memory back.
  void abandon(std::vector<Orphan> *orphans);

 private:
  MPI_Comm comm_;
  StagingPool &pool_;
  std::vector<Orphan> slots_;  // messages sent; reused once they have left
};

}  // namespace lasp::mpi
