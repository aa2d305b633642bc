// The in-process transport: the ranks are threads of one process. A message is copied once, straight from the
// sender's memory to the receiver's, by whichever of the two comes second. One mutex per group guards the matching;
// the copy itself runs outside it. Nothing is allocated once each rank's pool of requests has grown to its need.
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <thread>

#include "comm/thread_request.h"
#include "comm/transport.h"

namespace lasp {
namespace {

using thread_transport::Mailbox;
using thread_transport::Phase;
using thread_transport::Request;
using thread_transport::RequestPool;
using Clock = std::chrono::steady_clock;

// Measured on two virtual Zen 3 cores, half the round trip of a ping-pong between two ranks: 4 bytes take 2 to 3 us
// while the receiver still polls and 45 us once it sleeps (mostly the machine's wake-up; less without
// virtualisation). 64 MiB messages, which come from memory, run at 8.3 GB/s; 1 MiB ones, from cache, at 27 GB/s.
constexpr double kLatencyUs = 10.0;
constexpr double kBandwidthGbs = 8.0;
// How long a wait polls, yielding at each look, before it sleeps: where each rank has a CPU to itself, as long as
// going to sleep and being woken would cost; where ranks share CPUs, hardly at all (8 ranks on 2 CPUs exchange half
// as much again that way).
constexpr auto kPoll = std::chrono::microseconds(50);
constexpr auto kPollSharing = std::chrono::microseconds(3);

// How long a wait sleeps, and what then: the rank that did not come is lost, or the wait ends without a word.
struct Patience {
  Clock::time_point end = Clock::time_point::max();
  bool last = true;
};

class ThreadGroup {
 public:
  explicit ThreadGroup(int nranks)
      : nranks_(nranks),
        poll_(static_cast<unsigned>(nranks) <= std::thread::hardware_concurrency() ? kPoll : kPollSharing),
        members_(nranks),
        mailboxes_(static_cast<size_t>(nranks) * nranks) {}

  int32_t nranks() const { return nranks_; }
  Clock::duration poll() const { return poll_; }
  bool broken() const { return broken_.load(std::memory_order_acquire); }

  // Matches the request with its other half and copies, or leaves it in the mailbox.
  void post(Request *request);
  // Sleeps until the request is done or the group is broken, or the patience is at its end. A rank whose patience
  // was not the last goes on waiting in the eyes of the others.
  lasp_status block(Request *request, const Patience &patience, bool *done, int32_t *lost_rank);
  // After this no other thread knows the request.
  void withdraw(Request *request);
  void break_group(int32_t rank, int32_t lost_rank);
  // As lasp_transport has it: as it was when the group broke, or as it is.
  int32_t peer_state(int32_t rank, int32_t *tag);
  // The rank's end is being destroyed.
  void leave(int32_t rank, RequestPool &pool);

 private:
  struct alignas(64) Member {
    std::condition_variable wake;
    const Request *awaits = nullptr;  // what this rank sleeps on
    bool gone = false;
    // When the group broke.
    int32_t state = LASP_PEER_UNKNOWN, tag = -1;
  };

  Mailbox &mailbox_of(const Request *request) {
    const int32_t from = request->is_send ? request->owner : request->peer;
    const int32_t to = request->is_send ? request->peer : request->owner;
    return mailboxes_[static_cast<size_t>(from) * nranks_ + to];
  }

  // The functions below are called with the mutex held.
  void finish(Request *request);
  void withdraw_locked(Request *request, std::unique_lock<std::mutex> &lock);
  void break_locked(lasp_status status, int32_t lost_rank);
  int32_t state_now(const Member &member, int32_t *tag) const;
  int32_t find_lost_rank(const Request *request) const;

  const int32_t nranks_;
  const Clock::duration poll_;
  std::mutex mutex_;
  std::vector<Member> members_;
  std::vector<Mailbox> mailboxes_;  // [from][to]
  // Set once, under the mutex and before broken_.
  lasp_status broken_status_ = LASP_OK;
  int32_t broken_lost_rank_ = -1;
  std::atomic<bool> broken_{false};
};

void ThreadGroup::post(Request *request) {
  std::unique_lock lock(mutex_);
  if (broken()) return;
  Mailbox &mailbox = mailbox_of(request);
  Request *other = mailbox.find(!request->is_send, request->tag);
  if (!other) {
    mailbox.append(request);
    request->phase.store(Phase::kPosted, std::memory_order_relaxed);
    return;
  }
  mailbox.remove(other);
  if (other->bytes != request->bytes) {
    other->phase.store(Phase::kIdle, std::memory_order_relaxed);
    break_locked(LASP_ERROR_TRANSPORT, -1);
    return;
  }
  request->phase.store(Phase::kCopying, std::memory_order_relaxed);
  other->phase.store(Phase::kCopying, std::memory_order_relaxed);
  lock.unlock();
  Request *to = request->is_send ? other : request;
  Request *from = request->is_send ? request : other;
  if (to->bytes != 0) std::memmove(to->data, from->data, to->bytes);
  lock.lock();
  finish(other);
  finish(request);
}

void ThreadGroup::finish(Request *request) {
  Member &owner = members_[request->owner];
  const bool awaited = owner.awaits == request;
  // Its owner may free the request as soon as it reads kDone, so this store is the last touch.
  request->phase.store(Phase::kDone, std::memory_order_release);
  if (awaited) owner.wake.notify_one();
}

lasp_status ThreadGroup::block(Request *request, const Patience &patience, bool *done, int32_t *lost_rank) {
  std::unique_lock lock(mutex_);
  Member &me = members_[request->owner];
  me.awaits = request;
  while (!broken()) {
    const Phase phase = request->phase.load(std::memory_order_relaxed);
    if (phase == Phase::kDone) break;
    if (phase == Phase::kPosted && members_[request->peer].gone) {
      break_locked(LASP_ERROR_PEER_LOST, request->peer);
    } else if (patience.end == Clock::time_point::max() || phase == Phase::kCopying) {
      me.wake.wait(lock);
    } else if (Clock::now() < patience.end) {
      me.wake.wait_until(lock, patience.end);
    } else if (patience.last) {
      break_locked(LASP_ERROR_PEER_LOST, find_lost_rank(request));
    } else {
      *done = false;
      return LASP_OK;
    }
  }
  me.awaits = nullptr;
  *done = true;
  if (!broken()) return LASP_OK;
  withdraw_locked(request, lock);
  if (lost_rank) *lost_rank = broken_lost_rank_;
  return broken_status_;
}

void ThreadGroup::withdraw(Request *request) {
  std::unique_lock lock(mutex_);
  withdraw_locked(request, lock);
}

void ThreadGroup::withdraw_locked(Request *request, std::unique_lock<std::mutex> &lock) {
  if (members_[request->owner].awaits == request) members_[request->owner].awaits = nullptr;
  if (request->phase.load(std::memory_order_relaxed) == Phase::kCopying) {
    Member &owner = members_[request->owner];
    owner.awaits = request;
    owner.wake.wait(lock, [&] { return request->phase.load(std::memory_order_relaxed) != Phase::kCopying; });
    owner.awaits = nullptr;
  }
  if (request->phase.load(std::memory_order_relaxed) != Phase::kPosted) return;
  mailbox_of(request).remove(request);
  request->phase.store(Phase::kIdle, std::memory_order_relaxed);
}

void ThreadGroup::break_group(int32_t rank, int32_t lost_rank) {
  std::unique_lock lock(mutex_);
  if (broken()) return;
  break_locked(lost_rank < 0 ? LASP_ERROR_ABORTED : LASP_ERROR_PEER_LOST, lost_rank);
  if (rank == lost_rank) members_[rank].state = LASP_PEER_FAILED;
}

void ThreadGroup::break_locked(lasp_status status, int32_t lost_rank) {
  if (broken()) return;
  for (Member &member : members_) member.state = state_now(member, &member.tag);
  broken_status_ = status;
  broken_lost_rank_ = lost_rank;
  broken_.store(true, std::memory_order_release);
  for (Member &member : members_) member.wake.notify_one();
}

int32_t ThreadGroup::state_now(const Member &member, int32_t *tag) const {
  *tag = -1;
  if (member.gone) return LASP_PEER_LEFT;
  const Request *awaited = member.awaits;
  if (!awaited || awaited->phase.load(std::memory_order_relaxed) != Phase::kPosted) return LASP_PEER_UNKNOWN;
  *tag = awaited->tag;
  return LASP_PEER_WAITS;
}

int32_t ThreadGroup::peer_state(int32_t rank, int32_t *tag) {
  std::unique_lock lock(mutex_);
  const Member &member = members_[rank];
  if (!broken()) return state_now(member, tag);
  *tag = member.tag;
  return member.state;
}

// Whom this request's owner is in truth waiting for: its peer may itself be held up by another, and so on, up to
// the rank that waits for nobody. Ranks that wait in a circle have nobody to blame but the direct peer.
int32_t ThreadGroup::find_lost_rank(const Request *request) const {
  int32_t rank = request->peer;
  for (int32_t hop = 0; hop < nranks_; ++hop) {
    const Request *awaited = members_[rank].awaits;
    if (!awaited || awaited->phase.load(std::memory_order_relaxed) != Phase::kPosted) return rank;
    rank = awaited->peer;
  }
  return request->peer;
}

void ThreadGroup::leave(int32_t rank, RequestPool &pool) {
  std::unique_lock lock(mutex_);
  pool.for_each([&](Request *request) { withdraw_locked(request, lock); });
  members_[rank].gone = true;
  for (const Member &member : members_) {
    const Request *awaited = member.awaits;
    if (awaited && awaited->peer == rank && awaited->phase.load(std::memory_order_relaxed) == Phase::kPosted) {
      break_locked(LASP_ERROR_PEER_LOST, rank);
    }
  }
}

// One rank's end: what `user` points at.
class ThreadEnd {
 public:
  ThreadEnd(std::shared_ptr<ThreadGroup> group, int32_t rank) : group_(std::move(group)), rank_(rank) {}
  ~ThreadEnd() { group_->leave(rank_, pool_); }

  lasp_status start(bool is_send, void *data, uint64_t bytes, int32_t peer, int32_t tag, void **handle) {
    if (peer < 0 || peer >= group_->nranks()) return LASP_ERROR_TRANSPORT;
    Request *request = pool_.take();
    request->data = data;
    request->bytes = bytes;
    request->owner = rank_;
    request->peer = peer;
    request->tag = tag;
    request->is_send = is_send;
    *handle = request;
    group_->post(request);
    return LASP_OK;
  }

  bool settled(const Request *request) const {
    return group_->broken() || request->phase.load(std::memory_order_acquire) == Phase::kDone;
  }

  // At most `most_ms` (-1: as long as it takes); `last` as Patience has it. Done or failed, not to be waited for
  // again.
  lasp_status wait(Request *request, int64_t most_ms, bool last, bool *done, int32_t *lost_rank) {
    const Clock::time_point start = Clock::now();
    // Only once: a rank that has slept already is not in a hurry.
    while (!asleep_ && !settled(request) && Clock::now() - start < group_->poll()) std::this_thread::yield();
    *done = true;
    if (asleep_ || group_->broken() || request->phase.load(std::memory_order_acquire) != Phase::kDone) {
      Patience patience;
      patience.last = last;
      if (most_ms >= 0) patience.end = start + std::chrono::milliseconds(most_ms);
      const lasp_status status = group_->block(request, patience, done, lost_rank);
      asleep_ = !*done;
      if (status != LASP_OK || asleep_) return status;
    }
    pool_.give_back(request);
    return LASP_OK;
  }

  void cancel(Request *request) {
    if (asleep_ || request->phase.load(std::memory_order_acquire) != Phase::kDone) group_->withdraw(request);
    asleep_ = false;
    pool_.give_back(request);
  }

  void abort(int32_t lost_rank) { group_->break_group(rank_, lost_rank); }

  int32_t peer_state(int32_t rank, int32_t *tag) const {
    *tag = -1;
    return rank >= 0 && rank < group_->nranks() ? group_->peer_state(rank, tag) : LASP_PEER_UNKNOWN;
  }

 private:
  std::shared_ptr<ThreadGroup> group_;
  int32_t rank_;
  bool asleep_ = false;  // a wait was interrupted, and the group still knows what for
  RequestPool pool_;
};

// The table's functions. No exception leaves them: a failed allocation or lock is a failure of the transport.
template <class Body>
lasp_status guarded(Body body) noexcept {
  try {
    return body();
  } catch (...) {
    return LASP_ERROR_TRANSPORT;
  }
}

ThreadEnd *end_of(void *user) { return static_cast<ThreadEnd *>(user); }
Request *request_of(void *handle) { return static_cast<Request *>(handle); }

lasp_status thread_send(void *user, const void *data, uint64_t bytes, int32_t peer, int32_t tag, lasp_stream,
                        void **handle) {
  // The pointer of a send is only ever read.
  return guarded([&] { return end_of(user)->start(true, const_cast<void *>(data), bytes, peer, tag, handle); });
}

lasp_status thread_receive(void *user, void *data, uint64_t bytes, int32_t peer, int32_t tag, lasp_stream,
                           void **handle) {
  return guarded([&] { return end_of(user)->start(false, data, bytes, peer, tag, handle); });
}

lasp_status thread_test(void *user, void *handle, int32_t *done) {
  *done = end_of(user)->settled(request_of(handle)) ? 1 : 0;
  return LASP_OK;
}

lasp_status thread_wait(void *user, void *handle, int64_t time_limit_ms, int32_t *lost_rank) {
  bool done;
  return guarded([&] { return end_of(user)->wait(request_of(handle), time_limit_ms, true, &done, lost_rank); });
}

lasp_status thread_wait_for(void *user, void *handle, int64_t most_ms, int32_t *done, int32_t *lost_rank) {
  return guarded([&] {
    bool is_done = false;
    const lasp_status status = end_of(user)->wait(request_of(handle), most_ms, false, &is_done, lost_rank);
    *done = is_done ? 1 : 0;
    return status;
  });
}

void thread_cancel(void *user, void *handle) {
  guarded([&] {
    end_of(user)->cancel(request_of(handle));
    return lasp_status{LASP_OK};
  });
}

void thread_abort(void *user, int32_t lost_rank) {
  guarded([&] {
    end_of(user)->abort(lost_rank);
    return lasp_status{LASP_OK};
  });
}

void thread_peer_state(void *user, int32_t rank, int32_t *state, int32_t *tag) {
  guarded([&] {
    *state = end_of(user)->peer_state(rank, tag);
    return lasp_status{LASP_OK};
  });
}

void thread_destroy(void *user) { delete end_of(user); }

}  // namespace

std::vector<TransportEnd> make_thread_transport(int nranks) {
  lasp_transport table = LASP_TRANSPORT_INIT;
  table.name = "threads";
  table.nranks = nranks;
  table.local_ranks = nranks;
  table.memory = LASP_DEVICE_CPU;
  table.latency_us = kLatencyUs;
  table.bandwidth_gbs = kBandwidthGbs;
  table.send = thread_send;
  table.receive = thread_receive;
  table.test = thread_test;
  table.wait = thread_wait;
  table.cancel = thread_cancel;
  table.abort = thread_abort;
  table.destroy = thread_destroy;
  table.wait_for = thread_wait_for;
  table.peer_state = thread_peer_state;

  auto group = std::make_shared<ThreadGroup>(nranks);
  std::vector<std::unique_ptr<ThreadEnd>> owners;
  for (int rank = 0; rank < nranks; ++rank) owners.push_back(std::make_unique<ThreadEnd>(group, rank));
  std::vector<TransportEnd> ends;
  ends.reserve(owners.size());
  for (int rank = 0; rank < nranks; ++rank) {
    table.rank = rank;
    ends.push_back({table, owners[rank].release()});
  }
  return ends;
}

}  // namespace lasp
