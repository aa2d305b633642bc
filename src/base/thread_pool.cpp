#include "base/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <exception>

#include "base/status.h"

namespace lasp {

int32_t usable_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;  // more CPUs than the set can name
  return std::max(1, CPU_COUNT(&set));
}

ThreadPool::ThreadPool(int32_t threads) {
  workers_.reserve(static_cast<size_t>(threads > 0 ? threads - 1 : 0));
  try {
    for (int32_t t = 1; t < threads; ++t) workers_.emplace_back([this, t] { run_worker(t); });
  } catch (...) {  // the system refused a thread: stop those already running before the members go away
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    start_.notify_all();
    for (std::thread &worker : workers_) worker.join();
    throw fail(LASP_ERROR_OUT_OF_MEMORY, "cpu_threads = %d: the system starts no more than %zu of these threads",
               threads, workers_.size() + 1);
  }
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  start_.notify_all();
  for (std::thread &worker : workers_) worker.join();
}

void ThreadPool::parallel_for(int64_t items, Body body, FunctionRef<void()> between) {
  // From inside `between` the workers are busy with the loop outside: its items are this thread's own.
  const bool shared = !workers_.empty() && items > 1 && !looping_;
  if (shared) {
    looping_ = true;
    {
      std::lock_guard lock(mutex_);
      body_ = body;
      items_ = items;
      next_.store(0, std::memory_order_relaxed);
      running_ = static_cast<int32_t>(workers_.size());
      ++generation_;
    }
    start_.notify_all();
  }
  std::exception_ptr failure;
  int64_t own = 0;
  for (;;) {
    const int64_t item = shared ? next_.fetch_add(1, std::memory_order_relaxed) : own++;
    if (item >= items) break;
    try {
      if (between) between();
    } catch (...) {  // the workers still hold `body`: let them run dry before it goes away
      failure = std::current_exception();
      if (shared) next_.store(items, std::memory_order_relaxed);
      break;
    }
    body(item, 0);
  }
  if (shared) {
    std::unique_lock lock(mutex_);
    finished_.wait(lock, [this] { return running_ == 0; });
    looping_ = false;
  }
  if (failure) std::rethrow_exception(failure);
}

void ThreadPool::run_worker(int32_t thread) {
  uint64_t seen = 0;
  for (;;) {
    Body body;
    int64_t items;
    {
      std::unique_lock lock(mutex_);
      start_.wait(lock, [&] { return stopping_ || generation_ != seen; });
      if (stopping_) return;
      seen = generation_;
      body = body_;
      items = items_;
    }
    for (int64_t item; (item = next_.fetch_add(1, std::memory_order_relaxed)) < items;) body(item, thread);
    {
      std::lock_guard lock(mutex_);
      if (--running_ == 0) finished_.notify_one();
    }
  }
}

}  // namespace lasp
