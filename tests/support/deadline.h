// A bound on how long a test may take, kept by a thread beside it. A test that waits in vain so fails by name and
// for a stated reason, and long before CTest would stop it. What hangs cannot be ended from outside, so the program
// ends.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <thread>

namespace lasp_test {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr int kSlowness = 6;
#else
constexpr int kSlowness = 1;
#endif

class Deadline {
 public:
  // `what` completes "this did not end within 40 s: <what>".
  explicit Deadline(const char *what, std::chrono::seconds limit = std::chrono::seconds(40))
      : what_(what), limit_(limit * kSlowness), watcher_([this] { watch(); }) {}
  ~Deadline() {
    {
      std::lock_guard lock(mutex_);
      ended_ = true;
    }
    end_.notify_one();
    watcher_.join();
  }
  Deadline(const Deadline &) = delete;
  Deadline &operator=(const Deadline &) = delete;

 private:
  void watch() {
    std::unique_lock lock(mutex_);
    if (end_.wait_for(lock, limit_, [this] { return ended_; })) return;
    const testing::TestInfo *const test = testing::UnitTest::GetInstance()->current_test_info();
    std::printf("Failure\nthis did not end within %lld s: %s\n[  FAILED  ] %s.%s\n",
                static_cast<long long>(limit_.count()), what_, test != nullptr ? test->test_suite_name() : "?",
                test != nullptr ? test->name() : "?");
    std::fflush(stdout);
    std::_Exit(1);
  }

  const char *const what_;
  const std::chrono::seconds limit_;
  std::mutex mutex_;
  std::condition_variable end_;
  bool ended_ = false;
  std::thread watcher_;
};

}  // namespace lasp_test
