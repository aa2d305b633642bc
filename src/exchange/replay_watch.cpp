#include "exchange/replay_watch.h"

namespace lasp {

bool ReplayWatch::poll(Clock::time_point now, std::chrono::milliseconds limit, uint32_t begun, uint32_t ended) {
  const bool running = begun != ended, same = running_ && ended == ended_;
  if (running && same) return limit.count() >= 0 && now - seen_ > limit;
  running_ = running;
  ended_ = ended;
  seen_ = now;
  return false;
}

}  // namespace lasp
