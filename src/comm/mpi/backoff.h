// How a wait passes the time between two looks: nothing at first, then it yields, then it sleeps. Ranks often share
// CPUs with others that compute; a rank that waits must not take their time.
#pragma once

#include <sched.h>
#include <time.h>

#include <algorithm>
#include <chrono>

namespace lasp::mpi {

class Backoff {
 public:
  // Returns false while it only spins, when a look should cost as little as possible.
  bool pause() {
    const auto waited = std::chrono::steady_clock::now() - start_;
    if (waited < kSpin) return false;
    if (waited < kYield) {
      sched_yield();
      return true;
    }
    // An eighth of the time waited so far, within limits: a message is found late by that much at most.
    const auto sleep = std::clamp<std::chrono::nanoseconds>(waited / 8, kShortestSleep, kLongestSleep);
    const timespec time = {0, static_cast<long>(sleep.count())};
    nanosleep(&time, nullptr);
    return true;
  }

 private:
  static constexpr auto kSpin = std::chrono::microseconds(10);
  static constexpr auto kYield = std::chrono::microseconds(200);
  static constexpr auto kShortestSleep = std::chrono::microseconds(25);
  static constexpr auto kLongestSleep = std::chrono::microseconds(250);

  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace lasp::mpi
