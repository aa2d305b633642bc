// A transport for tests that hands every call on to another one and keeps what was asked of it.
#pragma once

#include <lasp/lasp.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace lasp_test {

class ObservedEnd {
 public:
  // Its user is the inner end's, which stays the caller's.
  ObservedEnd(const lasp_transport &inner, void *user) : inner_(inner), user_(user) {}
  ObservedEnd(const ObservedEnd &) = delete;
  ObservedEnd &operator=(const ObservedEnd &) = delete;

  // Calls with this object as their user.
  lasp_transport table() const {
    lasp_transport t = LASP_TRANSPORT_INIT;
    t.name = inner_.name, t.rank = inner_.rank, t.nranks = inner_.nranks, t.local_ranks = inner_.local_ranks;
    t.memory = inner_.memory, t.latency_us = inner_.latency_us, t.bandwidth_gbs = inner_.bandwidth_gbs;
    t.send = [](void *user, const void *data, uint64_t bytes, int32_t peer, int32_t tag, lasp_stream stream,
                void **request) {
      ObservedEnd &end = of(user);
      end.tags.push_back(tag);
      return end.inner_.send(end.user_, data, bytes, peer, tag, stream, request);
    };
    t.receive = [](void *user, void *data, uint64_t bytes, int32_t peer, int32_t tag, lasp_stream stream,
                   void **request) {
      ObservedEnd &end = of(user);
      end.tags.push_back(tag);
      return end.inner_.receive(end.user_, data, bytes, peer, tag, stream, request);
    };
    t.test = [](void *user, void *request, int32_t *done) {
      return of(user).inner_.test(of(user).user_, request, done);
    };
    t.wait = [](void *user, void *request, int64_t time_limit_ms, int32_t *lost_rank) {
      ObservedEnd &end = of(user);
      end.limits.push_back(time_limit_ms);
      end.before_wait();
      return end.inner_.wait(end.user_, request, time_limit_ms, lost_rank);
    };
    t.cancel = [](void *user, void *request) { of(user).inner_.cancel(of(user).user_, request); };
    if (inner_.abort != nullptr)
      t.abort = [](void *user, int32_t lost_rank) { of(user).inner_.abort(of(user).user_, lost_rank); };
    return t;
  }

  std::vector<int32_t> tags;    // of sends and receives, in their order
  std::vector<int64_t> limits;  // of waits
  std::function<void()> before_wait = [] {};

 private:
  static ObservedEnd &of(void *user) { return *static_cast<ObservedEnd *>(user); }

  lasp_transport inner_;
  void *user_;
};

}  // namespace lasp_test
