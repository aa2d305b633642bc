// Notices an exchange on a device that has begun and does not end: the host never waits for it, so it looks now and
// then. Knows no device: whether a mark on the stream has been passed is asked of the caller.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>

#include "base/function_ref.h"

namespace lasp {

class ExchangeWatch {
 public:
  using Clock = std::chrono::steady_clock;
  // Exchanges watched at once. Those beyond are not: they end after the ones before them.
  static constexpr int32_t kSlots = 32;

  // Starts to watch an exchange; the caller marks the stream where it begins and where it ends, under this number.
  // -1: too many are under way already.
  int32_t open(int32_t peer);
  // Takes the last open() back: its marks were not made.
  void drop();
  // `passed(slot, end)`: whether the mark at the exchange's beginning (end) has been passed. The peer of an
  // exchange that was seen running `limit` ago and has not ended; nothing while all is well. limit < 0: no limit.
  std::optional<int32_t> poll(Clock::time_point now, std::chrono::milliseconds limit,
                              FunctionRef<bool(int32_t slot, bool end)> passed);

 private:
  struct Watched {
    int32_t peer = -1;
    bool begun = false;
    Clock::time_point seen;  // when it was first seen to have begun
  };
  std::array<Watched, kSlots> ring_;
  int32_t oldest_ = 0, count_ = 0;
};

}  // namespace lasp
