// The DEBUG line of one exchange: call, number, bytes, peers, time. Costs nothing unless it is wanted, and no
// memory then.
#pragma once

#include <chrono>
#include <cstdint>

#include "base/log.h"
#include "comm/comm.h"
#include "exchange/exchange.h"

namespace lasp {

class ExchangeLog {
 public:
  // The exchange begins. Without the DEBUG level nothing below does anything.
  ExchangeLog(const Log &log, const Comm &comm);

  bool wanted() const { return log_.wants(LASP_LOG_DEBUG); }
  void add(bool is_send, int32_t peer, uint64_t bytes);
  void add(const ExchangePlan &plan);
  // Its end; `what` was exchanged. `enqueued`: all that is known is how long that took, for the host does not wait.
  void write(const char *what, bool enqueued = false) const;

 private:
  using Clock = std::chrono::steady_clock;
  // One way: how many bytes, and to or from whom, as far as there is room.
  struct Way {
    uint64_t bytes = 0;
    int32_t last_peer = -1;
    size_t length = 0;
    char peers[96] = "";
  };

  const Log &log_;
  const Comm &comm_;
  Way sent_, received_;
  Clock::time_point begin_;
  double waited_ = 0;
};

}  // namespace lasp
