// Where there is a fault to come, messages that are received lie in memory of the wrapper's own until they have
// been waited for, so that nothing is in the library's before it may be, and the library's holds a pattern
// meanwhile.
#include "faulty_transport.h"

#include <chrono>
#include <cstring>
#include <thread>

#include "base/checksum.h"

namespace lasp_fault {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kLongestDelayUs = 2000;
constexpr int32_t kMostTag = 32767;

FaultyEnd &end_of(void *user) { return *static_cast<FaultyEnd *>(user); }

}  // namespace

struct FaultyEnd::Held {
  void *inner = nullptr;
  bool real = true;  // the inner transport knows of it
  int32_t peer = -1;
  uint64_t bytes = 0;
  const void *sent = nullptr;  // of a send
  uint64_t sent_checksum = 0;
  void *into = nullptr;  // of a receive
  std::vector<unsigned char> arrived;
  int64_t flip = -1;  // this bit is changed
  lasp_status wait_fails = LASP_OK;
  bool waited = false;
  Clock::time_point due{};
};

FaultyEnd::FaultyEnd(const lasp_transport &inner, void *user, uint64_t seed)
    : inner_(inner), user_(user), random_(seed) {}

lasp_transport FaultyEnd::table() const {
  lasp_transport t = inner_;
  t.name = "faulty";
  t.send = [](void *user, const void *data, uint64_t bytes, int32_t peer, int32_t tag, lasp_stream,
              void **request) { return end_of(user).send(data, bytes, peer, tag, request); };
  t.receive = [](void *user, void *data, uint64_t bytes, int32_t peer, int32_t tag, lasp_stream, void **request) {
    return end_of(user).receive(data, bytes, peer, tag, request);
  };
  t.test = [](void *user, void *request, int32_t *done) {
    return end_of(user).test(static_cast<Held *>(request), done);
  };
  t.wait = [](void *user, void *request, int64_t time_limit_ms, int32_t *lost_rank) {
    return end_of(user).wait(static_cast<Held *>(request), time_limit_ms, lost_rank);
  };
  t.wait_for = [](void *user, void *request, int64_t most_ms, int32_t *done, int32_t *lost_rank) {
    return end_of(user).wait_for(static_cast<Held *>(request), most_ms, done, lost_rank);
  };
  if (inner_.wait_for == nullptr) t.wait_for = nullptr;
  t.peer_state = [](void *user, int32_t rank, int32_t *state, int32_t *tag) {
    FaultyEnd &end = end_of(user);
    if (end.inner_.peer_state != nullptr) end.inner_.peer_state(end.user_, rank, state, tag);
  };
  t.cancel = [](void *user, void *request) { end_of(user).cancel(static_cast<Held *>(request)); };
  t.abort = [](void *user, int32_t lost_rank) {
    FaultyEnd &end = end_of(user);
    if (end.inner_.abort != nullptr) end.inner_.abort(end.user_, lost_rank);
  };
  t.destroy = [](void *user) { end_of(user).destroy(); };
  return t;
}

void FaultyEnd::arm(const Injection &injection) {
  injection_ = injection;
  counts_ = {};
  reached_ = false;
  affected_peer_ = cut_peer_ = -1;
  random_ ^= injection.seed * 0x9e3779b97f4a7c15;
}

uint64_t FaultyEnd::random() {  // splitmix64
  uint64_t z = (random_ += 0x9e3779b97f4a7c15);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

void FaultyEnd::blame(const std::string &what) { misuse_ += misuse_.empty() ? what : "; " + what; }

bool FaultyEnd::strikes(Fault fault, int64_t count, int32_t peer) {
  if (injection_.fault != fault || injection_.at != count) return false;
  reached_ = true;
  affected_peer_ = peer;
  return true;
}

bool FaultyEnd::stops(int32_t peer) {
  if (!strikes(Fault::kStop, counts_.calls(), peer)) return false;
  stopped();
  return true;
}

lasp_status FaultyEnd::failed(lasp_status status) {
  broken_ = true;
  return status;
}

void FaultyEnd::require_unbroken(const char *call) {
  if (broken_) blame(std::string(call) + " after a failure");
}

FaultyEnd::Held *FaultyEnd::hold(int32_t peer, int32_t tag, uint64_t bytes) {
  if (peer < 0 || peer >= inner_.nranks || peer == inner_.rank) blame("peer " + std::to_string(peer));
  if (tag < 0 || tag > kMostTag) blame("tag " + std::to_string(tag));
  Held *held = new Held;
  held->peer = peer;
  held->bytes = bytes;
  if (injection_.fault == Fault::kDelay) {
    held->due = Clock::now() + std::chrono::microseconds(random() % kLongestDelayUs);
    reached_ = true;
  }
  held_.insert(held);
  return held;
}

void FaultyEnd::finish(Held *held) {
  if (held->sent != nullptr && lasp::checksum(held->sent, held->bytes, 0) != held->sent_checksum)
    blame("data was changed while it was being sent");
  held_.erase(held);
  delete held;
}

lasp_status FaultyEnd::send(const void *data, uint64_t bytes, int32_t peer, int32_t tag, void **request) {
  require_unbroken("send");
  ++counts_.sends;
  if (stops(peer)) return failed(LASP_ERROR_TRANSPORT);
  if (strikes(Fault::kFailSend, counts_.sends, peer)) return failed(injection_.status);
  Held *held = hold(peer, tag, bytes);
  held->sent = data;
  held->sent_checksum = lasp::checksum(data, bytes, 0);
  if (strikes(Fault::kCut, counts_.sends, peer)) cut_peer_ = peer;
  held->real = !strikes(Fault::kDrop, counts_.sends, peer) && cut_peer_ != peer;
  *request = held;
  if (!held->real) return LASP_OK;
  const lasp_status status = inner_.send(user_, data, bytes, peer, tag, nullptr, &held->inner);
  if (status == LASP_OK) return status;
  finish(held);
  return failed(status);
}

lasp_status FaultyEnd::receive(void *data, uint64_t bytes, int32_t peer, int32_t tag, void **request) {
  require_unbroken("receive");
  ++counts_.receives;
  counts_.received.push_back(bytes);
  if (stops(peer)) return failed(LASP_ERROR_TRANSPORT);
  if (strikes(Fault::kFailReceive, counts_.receives, peer)) return failed(injection_.status);
  Held *held = hold(peer, tag, bytes);
  void *to = data;
  if (injection_.fault != Fault::kNone) {
    held->into = data;
    held->arrived.resize(bytes);
    to = held->arrived.data();
    std::memset(data, 0xee, bytes);
  }
  if (strikes(Fault::kCorrupt, counts_.receives, peer))
    held->flip = static_cast<int64_t>(injection_.seed % (8 * bytes));
  *request = held;
  const lasp_status status = inner_.receive(user_, to, bytes, peer, tag, nullptr, &held->inner);
  if (status == LASP_OK) return status;
  finish(held);
  return failed(status);
}

lasp_status FaultyEnd::test(Held *held, int32_t *done) {
  if (held_.count(held) == 0) blame("test of a request that has ended");
  ++counts_.tests;
  if (strikes(Fault::kFailTest, counts_.tests, held->peer)) {
    if (injection_.seed % 2 == 0) held->wait_fails = injection_.status;
    return injection_.status;
  }
  *done = 0;
  if (Clock::now() < held->due) return LASP_OK;
  if (held->real) return inner_.test(user_, held->inner, done);
  *done = 1;
  return LASP_OK;
}

lasp_status FaultyEnd::begin_wait(Held *held) {
  require_unbroken("wait");
  if (held_.count(held) == 0) blame("wait for a request that has ended");
  if (!held->waited) {
    held->waited = true;
    ++counts_.waits;
    if (stops(held->peer)) return failed(LASP_ERROR_TRANSPORT);
    if (strikes(Fault::kFailWait, counts_.waits, held->peer)) return failed(injection_.status);
  }
  std::this_thread::sleep_until(held->due);
  return held->wait_fails == LASP_OK ? LASP_OK : failed(held->wait_fails);
}

lasp_status FaultyEnd::wait(Held *held, int64_t time_limit_ms, int32_t *lost_rank) {
  if (const lasp_status status = begin_wait(held)) return status;
  if (held->real) {
    const lasp_status status = inner_.wait(user_, held->inner, time_limit_ms, lost_rank);
    if (status != LASP_OK) return failed(status);
  }
  deliver(held);
  return LASP_OK;
}

lasp_status FaultyEnd::wait_for(Held *held, int64_t most_ms, int32_t *done, int32_t *lost_rank) {
  if (const lasp_status status = begin_wait(held)) return status;
  *done = 1;
  if (held->real) {
    const lasp_status status = inner_.wait_for(user_, held->inner, most_ms, done, lost_rank);
    if (status != LASP_OK) return failed(status);
  }
  if (*done != 0) deliver(held);
  return LASP_OK;
}

void FaultyEnd::deliver(Held *held) {
  if (held->flip >= 0) held->arrived[static_cast<size_t>(held->flip / 8)] ^= 1u << held->flip % 8;
  if (held->into != nullptr) std::memcpy(held->into, held->arrived.data(), held->bytes);
  finish(held);
}

void FaultyEnd::cancel(Held *held) {
  if (held_.count(held) == 0) return blame("cancel of a request that has ended");
  if (held->real) inner_.cancel(user_, held->inner);
  finish(held);
}

void FaultyEnd::destroy() {
  if (destroyed_) blame("destroyed twice");
  destroyed_ = true;
  if (!held_.empty()) blame(std::to_string(held_.size()) + " requests were never ended");
  if (inner_.destroy != nullptr) inner_.destroy(user_);
}

}  // namespace lasp_fault
