// A transport of the tests' own by the public table alone: messages lie in boxes until they are fetched, a send is
// done at once, and a rank that gives up is known to all by `abort`.
#pragma once

#include <lasp/lasp.h>

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <tuple>
#include <vector>

namespace lasp_test {

class Mailboxes {
 public:
  explicit Mailboxes(int32_t nranks) : ends_(static_cast<size_t>(nranks)) {
    for (int32_t r = 0; r < nranks; ++r) ends_[static_cast<size_t>(r)] = {this, r};
  }

  lasp_status make_comm(int32_t rank, lasp_comm **comm) {
    const lasp_transport t = table(rank);
    return lasp_comm_create_custom(&t, user(rank), comm);
  }
  void *user(int32_t rank) { return &ends_[static_cast<size_t>(rank)]; }
  lasp_transport table(int32_t rank) const {
    lasp_transport t = LASP_TRANSPORT_INIT;
    t.name = "mailbox";
    t.rank = rank;
    t.nranks = static_cast<int32_t>(ends_.size());
    t.send = send;
    t.receive = receive;
    t.test = test;
    t.wait = wait;
    t.cancel = [](void *, void *request) { delete static_cast<Request *>(request); };
    t.abort = abort;
    return t;
  }

 private:
  struct End {
    Mailboxes *all;
    int32_t rank;
  };
  struct Request {
    void *into;
    uint64_t bytes;
    int32_t from, to, tag;
  };
  using Box = std::deque<std::vector<char>>;

  static lasp_status send(void *user, const void *data, uint64_t bytes, int32_t peer, int32_t tag, lasp_stream,
                          void **request) {
    const End &end = *static_cast<End *>(user);
    const auto *first = static_cast<const char *>(data);
    {
      std::lock_guard lock(end.all->mutex_);
      end.all->boxes_[{end.rank, peer, tag}].emplace_back(first, first + bytes);
    }
    end.all->arrived_.notify_all();
    *request = nullptr;  // done at once, with nothing to remember: legal, and still to be ended
    return LASP_OK;
  }
  static lasp_status receive(void *user, void *data, uint64_t bytes, int32_t peer, int32_t tag, lasp_stream,
                             void **request) {
    *request = new Request{data, bytes, peer, static_cast<End *>(user)->rank, tag};
    return LASP_OK;
  }
  static lasp_status test(void *user, void *request, int32_t *done) {
    Mailboxes &all = *static_cast<End *>(user)->all;
    const auto *r = static_cast<Request *>(request);
    std::lock_guard lock(all.mutex_);
    *done = r == nullptr || !all.boxes_[{r->from, r->to, r->tag}].empty();
    return LASP_OK;
  }
  static lasp_status wait(void *user, void *request, int64_t time_limit_ms, int32_t *lost_rank) {
    Mailboxes &all = *static_cast<End *>(user)->all;
    auto *r = static_cast<Request *>(request);
    if (r == nullptr) return LASP_OK;
    std::unique_lock lock(all.mutex_);
    Box &box = all.boxes_[{r->from, r->to, r->tag}];
    const bool in_time = all.arrived_.wait_for(lock, std::chrono::milliseconds(time_limit_ms),
                                               [&] { return !box.empty() || all.lost_ >= 0; });
    if (box.empty()) {
      *lost_rank = in_time ? all.lost_ : r->from;
      return LASP_ERROR_PEER_LOST;
    }
    if (box.front().size() != r->bytes) return LASP_ERROR_TRANSPORT;
    std::memcpy(r->into, box.front().data(), box.front().size());
    box.pop_front();
    delete r;
    return LASP_OK;
  }
  static void abort(void *user, int32_t lost_rank) {
    const End &end = *static_cast<End *>(user);
    {
      std::lock_guard lock(end.all->mutex_);
      if (end.all->lost_ < 0) end.all->lost_ = lost_rank >= 0 ? lost_rank : end.rank;
    }
    end.all->arrived_.notify_all();
  }

  std::vector<End> ends_;
  int32_t lost_ = -1;
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::map<std::tuple<int32_t, int32_t, int32_t>, Box> boxes_;
};

}  // namespace lasp_test
