// A wait of this rank for others: how long it may last, and who can end it. Each context has one policy, each wait
// one Wait, which is asked now and then by whatever does the waiting.
#pragma once

#include <lasp/lasp.h>

#include <chrono>
#include <cstdint>
#include <string>

#include "base/log.h"
#include "base/status.h"

namespace lasp {

class Comm;

// Ten years. A longer limit is none, so that any limit can be added to a time.
constexpr int64_t kLongestLimitMs = int64_t{10} * 365 * 24 * 3600 * 1000;

struct WaitPolicy {
  int64_t limit_ms = -1;  // of each wait, at most kLongestLimitMs; -1: no limit
  Log log;
  lasp_interrupted_function interrupted = nullptr;
  void *interrupted_user = nullptr;
};

class Wait {
 public:
  using Clock = std::chrono::steady_clock;

  // `what` completes "rank 1 was <what> in lasp_forward"; `peer` is whom it waits for, -1: several, or not known.
  Wait(Comm &comm, const WaitPolicy &policy, const char *what, int32_t peer,
       Clock::time_point begin = Clock::now());

  // Throws LASP_ERROR_ABORTED when the group was aborted, or when the caller's function asks for it. Warns of a
  // wait that lasts long. Costs little: call it as often as one likes.
  void look(Clock::time_point now = Clock::now());
  // The same, and throws LASP_ERROR_PEER_LOST once the limit has passed: for waits that no transport ends.
  void poll(Clock::time_point now = Clock::now());

  Clock::time_point begin() const { return begin_; }
  int32_t peer() const { return peer_; }
  int64_t limit_ms() const { return policy_.limit_ms; }
  int64_t waited_ms(Clock::time_point now = Clock::now()) const;
  // Of the limit, rounded up, never less than 0; -1: no limit.
  int64_t left_ms(Clock::time_point now = Clock::now()) const;

  // "rank 1 (threads transport) was waiting for a state in lasp_forward, peer 0".
  std::string sentence() const;
  Error aborted() const;

 private:
  void warn(Clock::time_point now);
  void ask(Clock::time_point now);

  Comm &comm_;
  const WaitPolicy &policy_;
  const char *what_;
  int32_t peer_;
  Clock::time_point begin_, next_warning_, next_question_;
};

}  // namespace lasp
