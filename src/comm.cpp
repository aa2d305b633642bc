#include "comm.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "checksum.h"

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
    error =
        fail(status,
             "rank %d did not come within the time limit of %lld ms (rank %d, %s transport, was %s in %s, peer %d)",
             lost, static_cast<long long>(time_limit_ms), rank(), name_.c_str(), what, call_, peer);
  } else if (status == LASP_ERROR_ABORTED) {
    error = fail(status, "the group was aborted while rank %d was %s in %s, peer %d", rank(), what, call_, peer);
  } else {
    error = fail(LASP_ERROR_TRANSPORT, "the %s transport failed with status %d while rank %d was %s in %s, peer %d",
                 name_.c_str(), status, rank(), what, call_, peer);
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

// To the others this rank is lost: the sender does not know of anything.
void Comm::lose_damaged(uint64_t bytes, int32_t peer, const char *what) {
  lose(fail(LASP_ERROR_TRANSPORT,
            "%llu bytes that rank %d sent arrived changed (checksum; rank %d, %s transport, was %s in %s)",
            static_cast<unsigned long long>(bytes), peer, rank(), name_.c_str(), what, call_),
       rank());
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

lasp_status Comm::test(void *request, bool &done) {
  int32_t is_done = 0;
  const lasp_status status = table_.test(user_, request, &is_done);
  done = status == LASP_OK && is_done != 0;
  return status;
}

void Comm::wait(void *request, int64_t time_limit_ms, const char *what, int32_t peer) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point begin = Clock::now();
  int32_t lost_rank = -1;
  const lasp_status status = table_.wait(user_, request, time_limit_ms, &lost_rank);
  traffic_.wait_seconds += std::chrono::duration<double>(Clock::now() - begin).count();
  check(status, what, peer, lost_rank, time_limit_ms);
}

void Messages::reserve(size_t count, bool verify) {
  open_.reserve(count);
  if (verify) checksums_.resize(count);
}

Messages::Open &Messages::add(void *request, const void *data, uint64_t bytes, int32_t peer, int32_t tag,
                              bool receives) {
  uint32_t number = 0;
  if (verifies()) {
    const auto before = std::find_if(open_.rbegin(), open_.rend(), [&](const Open &o) {
      return o.peer == peer && o.tag == tag && o.receives == receives;
    });
    if (before != open_.rend()) number = before->number + 1;
  }
  return open_.emplace_back(Open{request, nullptr, data, bytes, peer, tag, number, receives, false, true});
}

uint64_t Messages::checksum_of(const Open &message, int32_t sender) const {
  return checksum(message.data, message.bytes, message_seed(sender, message.tag, message.number));
}

// The data is on its way while its checksum is worked out.
size_t Messages::send(Comm &comm, const void *data, uint64_t bytes, int32_t peer, int32_t tag, lasp_stream stream) {
  const size_t index = open_.size();
  Open &message = add(comm.send(data, bytes, peer, tag, stream), data, bytes, peer, tag, false);
  if (counted_) comm.count_sent(bytes);
  if (verifies()) {
    uint64_t &sum = checksums_.at(index) = checksum_of(message, comm.rank());
    message.checksum_request = comm.send(&sum, sizeof sum, peer, tag, stream);
    message.checksum_ended = false;
  }
  return index;
}

size_t Messages::receive(Comm &comm, void *data, uint64_t bytes, int32_t peer, int32_t tag, lasp_stream stream) {
  const size_t index = open_.size();
  Open &message = add(comm.receive(data, bytes, peer, tag, stream), data, bytes, peer, tag, true);
  if (counted_) comm.count_received(bytes);
  if (verifies()) {
    message.checksum_request = comm.receive(&checksums_.at(index), sizeof(uint64_t), peer, tag, stream);
    message.checksum_ended = false;
  }
  return index;
}

// After a test that failed nothing is tested any more: the wait to come knows the peer and says what is wrong. To
// wait at once could be for a rank that itself waits for what this one has yet to send.
bool Messages::test(Comm &comm, size_t index) {
  const Open &message = open_[index];
  const auto is_through = [&](void *request) {
    bool done = false;
    if (!test_failed_) test_failed_ = comm.test(request, done) != LASP_OK;
    return done;
  };
  return (message.ended || is_through(message.request)) &&
         (message.checksum_ended || is_through(message.checksum_request));
}

bool Messages::test_all(Comm &comm) {
  bool done = true;
  for (size_t i = 0; i < open_.size(); ++i) done = test(comm, i) && done;
  return done;
}

void Messages::wait(Comm &comm, size_t index, int64_t time_limit_ms, const char *what) {
  Open &message = open_[index];
  if (!message.ended) comm.wait(message.request, time_limit_ms, what, message.peer);
  message.ended = true;
  if (message.checksum_ended) return;
  const uint64_t sum = message.receives ? checksum_of(message, message.peer) : 0;
  comm.wait(message.checksum_request, time_limit_ms, what, message.peer);
  message.checksum_ended = true;
  if (message.receives && sum != checksums_[index]) comm.lose_damaged(message.bytes, message.peer, what);
}

void Messages::wait_all(Comm &comm, int64_t time_limit_ms, const char *what) {
  for (size_t i = 0; i < open_.size(); ++i) wait(comm, i, time_limit_ms, what);
  clear();
}

void Messages::cancel_all(Comm &comm) noexcept {
  for (Open &message : open_) {
    if (!message.ended) comm.cancel(message.request);
    if (!message.checksum_ended) comm.cancel(message.checksum_request);
  }
  clear();
}

}  // namespace lasp
