#include "comm.h"

#include <chrono>
#include <utility>

namespace lasp {

Comm::Comm(const lasp_transport &transport, void *user, CommKind kind, std::shared_ptr<const NcclGroup> nccl)
    : table_(transport),
      user_(user),
      kind_(kind),
      nccl_(std::move(nccl)),
      name_(transport.name != nullptr ? transport.name : "custom") {
  table_.name = nullptr;  // the caller's string may go away
  if (table_.local_ranks < 1) table_.local_ranks = 1;
}

Comm::~Comm() {
  if (table_.destroy != nullptr) table_.destroy(user_);
}

void Comm::abort() {
  lasp_status expected = LASP_OK;
  broken_.compare_exchange_strong(expected, LASP_ERROR_ABORTED);
  if (table_.abort != nullptr) table_.abort(user_, -1);
}

lasp_status Comm::async_status() const { return broken_.load(std::memory_order_acquire); }

void Comm::require_usable() const {
  const lasp_status status = async_status();
  if (status == LASP_OK) return;
  if (status == LASP_ERROR_ABORTED)
    throw fail(status, "comm: the group was aborted; destroy it and build a new one");
  throw fail(status, "comm: unusable since an earlier call: %s", reason_.c_str());
}

void Comm::check(lasp_status status, const char *what, int32_t peer, int32_t lost_rank, int64_t time_limit_ms) {
  if (status == LASP_OK) return;
  Error error{LASP_ERROR_TRANSPORT, {}};
  int32_t lost = rank();  // whom the others lose: a rank whose own transport failed is lost to them
  if (status == LASP_ERROR_PEER_LOST) {
    lost = lost_rank >= 0 && lost_rank < nranks() ? lost_rank : peer;
    error = fail(status,
                 "rank %d did not come within the time limit of %lld ms (rank %d, %s transport, was %s, peer %d)",
                 lost, static_cast<long long>(time_limit_ms), rank(), name_.c_str(), what, peer);
  } else if (status == LASP_ERROR_ABORTED) {
    error = fail(status, "the group was aborted while rank %d was %s, peer %d", rank(), what, peer);
  } else {
    error = fail(LASP_ERROR_TRANSPORT, "the %s transport failed with status %d while rank %d was %s, peer %d",
                 name_.c_str(), status, rank(), what, peer);
  }
  lose(error, lost);
}

void Comm::lose(const Error &error, int32_t lost_rank) {
  lasp_status expected = LASP_OK;
  if (broken_.load(std::memory_order_relaxed) == LASP_OK) reason_ = error.sentence;
  broken_.compare_exchange_strong(expected, error.status, std::memory_order_release);
  // The others need not wait for their own time limits.
  if (table_.abort != nullptr && error.status != LASP_ERROR_ABORTED) table_.abort(user_, lost_rank);
  throw error;
}

void Comm::lose_for_want_of_memory() noexcept {
  lasp_status expected = LASP_OK;
  // Fits into the string itself: nothing is allocated.
  if (broken_.load(std::memory_order_relaxed) == LASP_OK) reason_ = "out of memory";
  broken_.compare_exchange_strong(expected, LASP_ERROR_OUT_OF_MEMORY, std::memory_order_release);
  if (table_.abort != nullptr) table_.abort(user_, rank());
}

void Comm::count_sent(uint64_t bytes) {
  traffic_.bytes_sent += bytes;
  ++traffic_.messages_sent;
}

void Comm::count_received(uint64_t bytes) {
  traffic_.bytes_received += bytes;
  ++traffic_.messages_received;
}

void *Comm::send(const void *data, uint64_t bytes, int32_t peer, int32_t tag, lasp_stream stream) {
  void *request = nullptr;
  check(table_.send(user_, data, bytes, peer, tag, stream, &request), "sending", peer, -1, 0);
  return request;
}

void *Comm::receive(void *data, uint64_t bytes, int32_t peer, int32_t tag, lasp_stream stream) {
  void *request = nullptr;
  check(table_.receive(user_, data, bytes, peer, tag, stream, &request), "receiving", peer, -1, 0);
  return request;
}

bool Comm::test(void *request) {
  int32_t done = 0;
  // A failure counts as done: the wait that follows knows the peer and says what is wrong.
  return table_.test(user_, request, &done) != LASP_OK || done != 0;
}

void Comm::wait(void *request, int64_t time_limit_ms, const char *what, int32_t peer) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point begin = Clock::now();
  int32_t lost_rank = -1;
  const lasp_status status = table_.wait(user_, request, time_limit_ms, &lost_rank);
  traffic_.wait_seconds += std::chrono::duration<double>(Clock::now() - begin).count();
  check(status, what, peer, lost_rank, time_limit_ms);
}

size_t Messages::send(Comm &comm, const void *data, uint64_t bytes, int32_t peer, int32_t tag, lasp_stream stream) {
  open_.push_back({comm.send(data, bytes, peer, tag, stream), peer, false});
  if (counted_) comm.count_sent(bytes);
  return open_.size() - 1;
}

size_t Messages::receive(Comm &comm, void *data, uint64_t bytes, int32_t peer, int32_t tag, lasp_stream stream) {
  open_.push_back({comm.receive(data, bytes, peer, tag, stream), peer, false});
  if (counted_) comm.count_received(bytes);
  return open_.size() - 1;
}

bool Messages::test(Comm &comm, size_t index) { return open_[index].ended || comm.test(open_[index].request); }

bool Messages::test_all(Comm &comm) {
  bool done = true;
  for (size_t i = 0; i < open_.size(); ++i) done = test(comm, i) && done;
  return done;
}

void Messages::wait(Comm &comm, size_t index, int64_t time_limit_ms, const char *what) {
  Open &message = open_[index];
  if (message.ended) return;
  comm.wait(message.request, time_limit_ms, what, message.peer);
  message.ended = true;
}

void Messages::wait_all(Comm &comm, int64_t time_limit_ms, const char *what) {
  for (size_t i = 0; i < open_.size(); ++i) wait(comm, i, time_limit_ms, what);
  open_.clear();
}

void Messages::cancel_all(Comm &comm) noexcept {
  for (Open &message : open_)
    if (!message.ended) comm.cancel(message.request);
  open_.clear();
}

}  // namespace lasp
