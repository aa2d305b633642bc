// A group of small ranks, each a thread of its own.
#pragma once

#include <atomic>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "small_rank.h"
#include "support/deadline.h"
#include "support/kinds.h"

namespace lasp_test {

// A program that is asked whether a call is to end: counts the questions, and says yes from one of them on.
struct Caller {
  std::atomic<int> asked{0};
  int yes_at = std::numeric_limits<int>::max();
  std::thread::id thread;  // whose calls ask
  bool other_thread = false;
  lasp_context_options options() {
    lasp_context_options o = LASP_CONTEXT_OPTIONS_INIT;
    o.interrupted_user = this;
    o.interrupted = [](void *user) {
      Caller &self = *static_cast<Caller *>(user);
      if (std::this_thread::get_id() != self.thread) self.other_thread = true;
      return ++self.asked >= self.yes_at ? int32_t{1} : int32_t{0};
    };
    return o;
  }
};

// A log: "<level> <message>" for each call, from whatever thread.
struct Lines {
  std::mutex mutex;
  std::vector<std::string> texts;
  lasp_context_options options(int32_t level) {
    lasp_context_options o = LASP_CONTEXT_OPTIONS_INIT;
    o.log_level = level;
    o.log_user = this;
    o.log = [](void *user, int32_t said, const char *message) {
      Lines &self = *static_cast<Lines *>(user);
      const std::lock_guard lock(self.mutex);
      self.texts.push_back(std::to_string(said) + " " + message);
    };
    return o;
  }
};

class Group {
 public:
  Group() = default;  // ranks to be added
  Group(int32_t nranks, int64_t time_limit_ms, const lasp_context_options &options = LASP_CONTEXT_OPTIONS_INIT) {
    std::vector<lasp_comm *> comms(static_cast<size_t>(nranks));
    EXPECT_EQ(lasp_comm_create_threads(nranks, comms.data()), LASP_OK);
    for (lasp_comm *comm : comms) ranks.push_back(std::make_unique<Rank>(comm, time_limit_ms, options));
  }
  // Runs `body` on a thread of each rank but `absent`.
  std::vector<Result> run(const std::function<Result(Rank &)> &body, int absent = -1) {
    std::vector<Result> results(ranks.size());
    std::vector<std::thread> threads;
    for (size_t r = 0; r < ranks.size(); ++r)
      if (static_cast<int>(r) != absent) threads.emplace_back([&, r] { results[r] = body(*ranks[r]); });
    for (std::thread &thread : threads) thread.join();
    return results;
  }
  std::vector<std::unique_ptr<Rank>> ranks;

 private:
  Deadline deadline_{"the calls of a group of ranks"};
};

inline void expect_all_ok(const std::vector<Result> &results) {
  for (const Result &result : results) EXPECT_EQ(result.status, LASP_OK) << result.sentence;
}

inline bool contains(const std::string &text, const std::string &part) {
  return text.find(part) != std::string::npos;
}

}  // namespace lasp_test
