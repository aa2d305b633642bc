// Notices an exchange inside a captured graph that a replay has begun and does not end. The host does not know of
// replays; the graph itself counts what it has begun and ended. Knows no device.
#pragma once

#include <chrono>
#include <cstdint>

namespace lasp {

class ReplayWatch {
 public:
  using Clock = std::chrono::steady_clock;

  // From counts of exchanges so far, which may wrap: whether some exchange was seen running `limit` ago and none
  // has ended since. limit < 0: no limit.
  bool poll(Clock::time_point now, std::chrono::milliseconds limit, uint32_t begun, uint32_t ended);

 private:
  bool running_ = false;
  uint32_t ended_ = 0;  // when it was first seen to run
  Clock::time_point seen_;
};

}  // namespace lasp
