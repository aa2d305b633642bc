#include "exchange/exchange_watch.h"

namespace lasp {

int32_t ExchangeWatch::open(int32_t peer) {
  if (count_ == kSlots) return -1;
  const int32_t slot = (oldest_ + count_++) % kSlots;
  ring_[static_cast<size_t>(slot)] = {peer, false, {}};
  return slot;
}

void ExchangeWatch::drop() { --count_; }

std::optional<int32_t> ExchangeWatch::poll(Clock::time_point now, std::chrono::milliseconds limit,
                                           FunctionRef<bool(int32_t slot, bool end)> passed) {
  while (count_ > 0) {
    Watched &first = ring_[static_cast<size_t>(oldest_)];
    if (passed(oldest_, true)) {
      oldest_ = (oldest_ + 1) % kSlots;
      --count_;
      continue;
    }
    if (!first.begun && passed(oldest_, false)) {
      first.begun = true;
      first.seen = now;
    }
    if (first.begun && limit.count() >= 0 && now - first.seen > limit) return first.peer;
    break;
  }
  return std::nullopt;
}

}  // namespace lasp
