// A bound on how long something may take, kept by a thread beside it. What hangs cannot be ended from outside, so
// the program ends: after it has said what hung, and long before CTest would stop it.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

namespace lasp_test {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr int kSlowness = 6;
#else
constexpr int kSlowness = 1;
#endif

class Watchdog {
 public:
  // `says` prints what hung. A sanitizer's build gets `kSlowness` times as long.
  Watchdog(std::chrono::seconds limit, std::function<void()> says)
      : limit_(limit * kSlowness), says_(std::move(says)), watcher_([this] { watch(); }) {}
  ~Watchdog() {
    {
      std::lock_guard lock(mutex_);
      ended_ = true;
    }
    end_.notify_one();
    watcher_.join();
  }
  Watchdog(const Watchdog &) = delete;
  Watchdog &operator=(const Watchdog &) = delete;

 private:
  void watch() {
    std::unique_lock lock(mutex_);
    if (end_.wait_for(lock, limit_, [this] { return ended_; })) return;
    says_();
    std::fflush(nullptr);
    std::_Exit(1);
  }

  const std::chrono::seconds limit_;
  const std::function<void()> says_;
  std::mutex mutex_;
  std::condition_variable end_;
  bool ended_ = false;
  std::thread watcher_;
};

}  // namespace lasp_test
