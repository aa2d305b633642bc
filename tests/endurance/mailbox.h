// A custom transport between threads of one process, by the public table alone, that never fails: messages lie in
// boxes until they are fetched. What a comm over a caller's functions is tested with here.
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

namespace endurance {

class Mailboxes {
 public:
  explicit Mailboxes(int32_t nranks) : ends_(static_cast<size_t>(nranks)) {
    for (int32_t r = 0; r < nranks; ++r) ends_[static_cast<size_t>(r)] = {this, r};
  }

  lasp_status make_comm(int32_t rank, lasp_comm **comm) {
    const lasp_transport table = make_table(rank);
    return lasp_comm_create_custom(&table, &ends_[static_cast<size_t>(rank)], comm);
  }

 private:
  struct End {
    Mailboxes *all;
    int32_t rank;
  };
  struct Request {
    void *into;
    int32_t from, to, tag;
  };

  static End &end_of(void *user) { return *static_cast<End *>(user); }

  static lasp_status send(void *user, const void *data, uint64_t bytes, int32_t peer, int32_t tag, lasp_stream,
                          void **request) {
    End &end = end_of(user);
    const auto *first = static_cast<const char *>(data);
    {
      std::lock_guard lock(end.all->mutex_);
      end.all->boxes_[{end.rank, peer, tag}].emplace_back(first, first + bytes);
    }
    end.all->arrived_.notify_all();
    *request = nullptr;
    return LASP_OK;
  }
  static lasp_status receive(void *user, void *data, uint64_t, int32_t peer, int32_t tag, lasp_stream,
                             void **request) {
    *request = new Request{data, peer, end_of(user).rank, tag};
    return LASP_OK;
  }
  static lasp_status test(void *user, void *request, int32_t *done) {
    Mailboxes &all = *end_of(user).all;
    const auto *r = static_cast<const Request *>(request);
    std::lock_guard lock(all.mutex_);
    *done = r == nullptr || !all.boxes_[{r->from, r->to, r->tag}].empty();
    return LASP_OK;
  }
  static lasp_status wait(void *user, void *request, int64_t time_limit_ms, int32_t *lost_rank) {
    auto *r = static_cast<Request *>(request);
    if (r == nullptr) return LASP_OK;
    Mailboxes &all = *end_of(user).all;
    std::unique_lock lock(all.mutex_);
    auto &box = all.boxes_[{r->from, r->to, r->tag}];
    if (!all.arrived_.wait_for(lock, std::chrono::milliseconds(time_limit_ms), [&] { return !box.empty(); })) {
      *lost_rank = r->from;
      return LASP_ERROR_PEER_LOST;
    }
    std::memcpy(r->into, box.front().data(), box.front().size());
    box.pop_front();
    delete r;
    return LASP_OK;
  }

  lasp_transport make_table(int32_t rank) const {
    lasp_transport t = LASP_TRANSPORT_INIT;
    t.name = "mailbox";
    t.rank = rank;
    t.nranks = static_cast<int32_t>(ends_.size());
    t.send = send;
    t.receive = receive;
    t.test = test;
    t.wait = wait;
    t.cancel = [](void *, void *request) { delete static_cast<Request *>(request); };
    return t;
  }

  std::vector<End> ends_;
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::map<std::tuple<int32_t, int32_t, int32_t>, std::deque<std::vector<char>>> boxes_;
};

}  // namespace endurance
