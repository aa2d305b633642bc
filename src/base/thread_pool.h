// The threads of one CPU context. A pool of our own instead of OpenMP: its width belongs to a context and not to
// the process, ranks that are threads do not fight over one team, the caller's thread can look after the exchange
// between items, and ThreadSanitizer understands it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "base/function_ref.h"

namespace lasp {

class ThreadPool {
 public:
  // `threads` counts the caller's own; threads - 1 are started and sleep between calls.
  explicit ThreadPool(int32_t threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool &) = delete;
  ThreadPool &operator=(const ThreadPool &) = delete;

  int32_t threads() const { return static_cast<int32_t>(workers_.size()) + 1; }

  // Calls body(item, thread) for every item in [0, items), in any order, thread in [0, threads()); thread 0 is the
  // caller's. `between` (may be empty) runs on the caller's thread before each of its items; what it throws ends
  // the loop early and is thrown on; it may run a loop of its own, alone. Bodies do not throw.
  using Body = FunctionRef<void(int64_t item, int32_t thread)>;
  void parallel_for(int64_t items, Body body, FunctionRef<void()> between = {});

 private:
  void run_worker(int32_t thread);

  std::vector<std::thread> workers_;
  std::mutex mutex_;
  std::condition_variable start_, finished_;
  uint64_t generation_ = 0;
  int32_t running_ = 0;
  bool stopping_ = false;
  bool looping_ = false;  // the caller's thread is inside a loop that the workers share
  Body body_;
  int64_t items_ = 0;
  std::atomic<int64_t> next_{0};
};

// CPUs that this process may use (its affinity mask), at least 1.
int32_t usable_cpus();

}  // namespace lasp
