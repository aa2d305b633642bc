#include "comm/comm.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <utility>

#include "base/checksum.h"

namespace lasp {
namespace {

// How long a transport waits before the library looks after other things.
constexpr int64_t kSliceMs = 100;

// Adds the time from `begin` on until it goes away.
class CountSeconds {
 public:
  CountSeconds(double &sum, Wait::Clock::time_point begin) : sum_(sum), begin_(begin) {}
  ~CountSeconds() { sum_ += std::chrono::duration<double>(Wait::Clock::now() - begin_).count(); }
  CountSeconds(const CountSeconds &) = delete;
  CountSeconds &operator=(const CountSeconds &) = delete;

 private:
  double &sum_;
  Wait::Clock::time_point begin_;
};

}  // namespace

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
  {
    const std::lock_guard lock(reason_mutex_);
    if (async_status() == LASP_OK) broken_.store(LASP_ERROR_ABORTED, std::memory_order_release);
  }
  if (table_.abort != nullptr) table_.abort(user_, -1);
}

lasp_status Comm::async_status() const { return broken_.load(std::memory_order_acquire); }

std::optional<Error> Comm::async_error() const {
  const lasp_status status = async_status();
  if (status == LASP_OK) return std::nullopt;
  const std::lock_guard lock(reason_mutex_);
  if (reason_[0] == 0) return fail(status, "comm: the group was aborted; destroy it and build a new one");
  return fail(status, "comm: unusable since an earlier call: %s", reason_);
}

void Comm::require_usable() const {
  if (const std::optional<Error> error = async_error()) throw *error;
}

void Comm::break_group(lasp_status status, const char *reason, int32_t lost_rank) noexcept {
  {
    const std::lock_guard lock(reason_mutex_);
    if (async_status() == LASP_OK) {
      std::snprintf(reason_, sizeof reason_, "%s", reason);
      broken_.store(status, std::memory_order_release);
    }
  }
  // The others need not wait for their own time limits.
  if (table_.abort != nullptr) table_.abort(user_, lost_rank);
}

void Comm::lose(const Error &error, int32_t lost_rank) {
  break_group(error.status, error.sentence.c_str(), lost_rank);
  throw error;
}

void Comm::give_up(const Error &error, bool others_wait) noexcept {
  if (nranks() == 1 || async_status() != LASP_OK) return;
  const int32_t group = error.status / 100;
  if (group == 4) return break_group(error.status, error.sentence.c_str(), rank());
  if (!others_wait || group > 2) return;
  char reason[sizeof reason_];
  std::snprintf(reason, sizeof reason, "%s was refused on this rank, and the others were told: %s", call_,
                error.sentence.c_str());
  break_group(LASP_ERROR_ABORTED, reason, rank());
}

// To the others this rank is lost: the sender does not know of anything.
void Comm::lose_damaged(uint64_t bytes, int32_t peer, const char *what, bool packed) {
  lose(fail(LASP_ERROR_TRANSPORT,
            "%llu bytes that rank %d sent arrived changed (checksum)%s: rank %d (%s transport) was %s in %s",
            static_cast<unsigned long long>(bytes), peer,
            packed ? ", or that rank was given another packing (cu_seqlens)" : "", rank(), name_.c_str(), what,
            call_),
       rank());
}

void Comm::failed(lasp_status status, const Wait &wait, int32_t lost_rank) {
  if (status == LASP_ERROR_PEER_LOST) {
    const int32_t lost = lost_rank >= 0 && lost_rank < nranks() ? lost_rank : wait.peer();
    lose(fail(status, "%s: %s%s", why_lost(lost, wait).c_str(), wait.sentence().c_str(),
              out_of_step(lost, wait).c_str()),
         lost);
  }
  if (status == LASP_ERROR_ABORTED) lose(wait.aborted(), -1);
  // A rank whose own transport failed is lost to the others.
  lose(fail(LASP_ERROR_TRANSPORT, "the %s transport failed (%s) while %s", name_.c_str(),
            status_text(status).c_str(), wait.sentence().c_str()),
       rank());
}

void Comm::check(lasp_status status, const char *what, int32_t peer) {
  if (status != LASP_OK) failed(status, Wait(*this, WaitPolicy(), what, peer), -1);
}

int32_t Comm::peer_state(int32_t rank, int32_t *tag) const {
  int32_t state = LASP_PEER_UNKNOWN;
  *tag = -1;
  if (table_.peer_state != nullptr) table_.peer_state(user_, rank, &state, tag);
  return state;
}

std::string Comm::why_lost(int32_t lost, const Wait &wait) const {
  const std::string who = "rank " + std::to_string(lost) + " did not come";
  if (lost == rank()) return who + " within another rank's time limit, and this is that rank";
  int32_t tag;
  const int32_t state = peer_state(lost, &tag);
  if (state == LASP_PEER_LEFT) return who + ", its comm was destroyed";
  if (state == LASP_PEER_FAILED)
    return who + ", one of its own calls was refused or failed, as its own sentence says";
  const int64_t waited = wait.waited_ms();
  if (wait.limit_ms() >= 0 && waited >= wait.limit_ms())
    return who + " within the time limit of " + std::to_string(wait.limit_ms()) + " ms";
  return who + ", as the " + name_ + " transport said after " + std::to_string(waited) + " ms";
}

// A rank that is named although it waits itself, waits in a circle with this one. When it does so in another call,
// that is why.
std::string Comm::out_of_step(int32_t lost, const Wait &wait) const {
  const int32_t other = lost != rank() ? lost : wait.peer();
  int32_t tag;
  if (other < 0 || peer_state(other, &tag) != LASP_PEER_WAITS) return "";
  const char *call = call_of_tag(tag);
  if (call == nullptr || std::strstr(call, call_) != nullptr) return "";
  return "; rank " + std::to_string(other) + " is in " + call + ", this rank in " + call_ +
         ": all ranks must make the same calls in the same order";
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
  check(table_.send(user_, data, bytes, peer, tag, stream, &request), "sending", peer);
  return request;
}

void *Comm::receive(void *data, uint64_t bytes, int32_t peer, int32_t tag, lasp_stream stream) {
  void *request = nullptr;
  check(table_.receive(user_, data, bytes, peer, tag, stream, &request), "receiving", peer);
  return request;
}

lasp_status Comm::test(void *request, bool &done) {
  int32_t is_done = 0;
  const lasp_status status = table_.test(user_, request, &is_done);
  done = status == LASP_OK && is_done != 0;
  return status;
}

void Comm::wait(void *request, const WaitPolicy &policy, const char *what, int32_t peer) {
  const TraceSpan span(trace_, Traced::kWait, what, peer);
  Wait wait(*this, policy, what, peer);
  const CountSeconds count(traffic_.wait_seconds, wait.begin());
  int32_t lost_rank = -1;
  const lasp_status status = wait_in_slices(wait, request, &lost_rank);
  if (status != LASP_OK) failed(status, wait, lost_rank);
}

// The transport waits a little at a time, so that this rank hears of other things meanwhile; the last time it is
// told that there is no more, and finds out who is lost.
lasp_status Comm::wait_in_slices(Wait &wait, void *request, int32_t *lost_rank) {
  for (Wait::Clock::time_point now = wait.begin();; now = Wait::Clock::now()) {
    if (now > wait.begin()) wait.look(now);
    const int64_t left_ms = wait.left_ms(now);
    const bool last = table_.wait_for == nullptr || (left_ms >= 0 && left_ms <= kSliceMs);
    if (last) return table_.wait(user_, request, left_ms, lost_rank);
    int32_t done = 0;
    const lasp_status status = table_.wait_for(user_, request, kSliceMs, &done, lost_rank);
    if (status != LASP_OK || done != 0) return status;
  }
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
  return open_.emplace_back(Open{request, nullptr, data, bytes, peer, tag, number, receives, false, true, 0, 0});
}

uint64_t Messages::checksum_of(const Open &message, int32_t sender) const {
  return checksum(message.data, message.bytes, message_seed(sender, message.tag, message.number) ^ packing_);
}

// The data is on its way while its checksum is worked out.
size_t Messages::send(Comm &comm, const void *data, uint64_t bytes, int32_t peer, int32_t tag, lasp_stream stream) {
  const size_t index = open_.size();
  const int64_t begin_ns = comm.trace() != nullptr ? Trace::now() : 0;
  Open &message = add(comm.send(data, bytes, peer, tag, stream), data, bytes, peer, tag, false);
  message.operation = comm.operations(), message.begin_ns = begin_ns;
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
  const int64_t begin_ns = comm.trace() != nullptr ? Trace::now() : 0;
  Open &message = add(comm.receive(data, bytes, peer, tag, stream), data, bytes, peer, tag, true);
  message.operation = comm.operations(), message.begin_ns = begin_ns;
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

void Messages::wait(Comm &comm, size_t index, const WaitPolicy &policy, const char *what) {
  Open &message = open_[index];
  if (!message.ended) {
    comm.wait(message.request, policy, what, message.peer);
    if (comm.trace() != nullptr) record(comm, message);
  }
  message.ended = true;
  if (message.checksum_ended) return;
  const uint64_t sum = message.receives ? checksum_of(message, message.peer) : 0;
  comm.wait(message.checksum_request, policy, what, message.peer);
  message.checksum_ended = true;
  if (message.receives && sum != checksums_[index])
    comm.lose_damaged(message.bytes, message.peer, what, packing_ != 0);
}

// Notes between devices are not messages of the exchange. A message that began before the trace has no begin.
void Messages::record(Comm &comm, const Open &message) const {
  if (!counted_ || message.begin_ns == 0) return;
  TraceRecord record;
  record.kind = message.receives ? Traced::kReceive : Traced::kSend;
  record.begin_ns = message.begin_ns;
  record.end_ns = Trace::now();
  record.bytes = message.bytes;
  record.operation = message.operation;
  record.tag = message.tag;
  record.peer = message.peer;
  comm.trace()->add(record);
}

void Messages::wait_all(Comm &comm, const WaitPolicy &policy, const char *what) {
  for (size_t i = 0; i < open_.size(); ++i) wait(comm, i, policy, what);
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
