// Messages over a stream socket between two processes: a length, then so many bytes. What fails throws
// std::runtime_error.
#pragma once

#include <cstdint>

#include "support/rank_bytes.h"

namespace lasp_test {

// False when the other side has closed or is gone.
bool send_message(int socket, const Bytes &message);

// A message that comes in parts.
class IncomingMessage {
 public:
  // Reads what there is, and waits where there is nothing; false when the other side has closed or is gone.
  bool read_some(int socket);
  bool complete() const { return have_ == kHead + bytes_.size(); }
  Bytes take();  // once complete; the next one follows

 private:
  static constexpr size_t kHead = sizeof(uint64_t);
  char head_[kHead] = {};
  Bytes bytes_ = {'\0'};  // until the head has come, never complete
  size_t have_ = 0;       // head included
};

// The next message into `message`; false when the other side has closed between two messages or is gone.
bool receive_message(int socket, Bytes &message);

}  // namespace lasp_test
