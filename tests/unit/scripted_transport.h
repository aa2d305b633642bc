// A transport for unit tests: answers what it is told to, and remembers what it was asked.
#pragma once

#include <lasp/lasp.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <thread>

struct ScriptedTransport {
  lasp_status wait_answers = LASP_OK, wait_for_answers = LASP_OK;
  int32_t lost_rank = -1;
  int32_t peer_is = LASP_PEER_UNKNOWN, peer_waits_for_tag = -1;  // of every other rank
  std::function<bool()> done = [] { return true; };              // asked by wait_for

  std::atomic<int> tests{0}, waits{0}, slices{0}, aborts{0};
  int64_t last_limit_ms = -2;
  std::atomic<int32_t> aborted_with{-2};

  // Of rank 1 in a group of three.
  lasp_transport table(bool with_wait_for) {
    lasp_transport t = LASP_TRANSPORT_INIT;
    t.name = "scripted";
    t.rank = 1;
    t.nranks = 3;
    t.send = [](void *, const void *, uint64_t, int32_t, int32_t, lasp_stream, void **) {
      return lasp_status{LASP_OK};
    };
    t.receive = [](void *, void *, uint64_t, int32_t, int32_t, lasp_stream, void **) {
      return lasp_status{LASP_OK};
    };
    t.test = [](void *user, void *, int32_t *is_done) {
      ScriptedTransport &self = of(user);
      ++self.tests;
      *is_done = 1;
      return lasp_status{LASP_OK};
    };
    t.wait = [](void *user, void *, int64_t limit_ms, int32_t *lost) {
      ScriptedTransport &self = of(user);
      ++self.waits;
      self.last_limit_ms = limit_ms;
      *lost = self.lost_rank;
      return self.wait_answers;
    };
    t.cancel = [](void *, void *) {};
    t.abort = [](void *user, int32_t lost) {
      ++of(user).aborts;
      of(user).aborted_with = lost;
    };
    t.peer_state = [](void *user, int32_t, int32_t *state, int32_t *tag) {
      *state = of(user).peer_is;
      *tag = of(user).peer_waits_for_tag;
    };
    if (!with_wait_for) return t;
    t.wait_for = [](void *user, void *, int64_t most_ms, int32_t *is_done, int32_t *lost) {
      ScriptedTransport &self = of(user);
      ++self.slices;
      *is_done = self.done() ? 1 : 0;
      if (*is_done == 0) std::this_thread::sleep_for(std::chrono::milliseconds(most_ms));
      *lost = self.lost_rank;
      return self.wait_for_answers;
    };
    return t;
  }

 private:
  static ScriptedTransport &of(void *user) { return *static_cast<ScriptedTransport *>(user); }
};
