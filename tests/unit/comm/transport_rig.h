// Rigs for tests of the transports: one end with calls that read like the contract, and a group of ends.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <ostream>
#include <thread>
#include <utility>
#include <vector>

#include "comm/transport.h"
#include "support/deadline.h"
#include "support/sleeper.h"

namespace transport_rig {

using lasp::TransportEnd;
using lasp_test::Sleeper;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

// Where a test expects no timeout; far above what a loaded machine needs.
constexpr int64_t kLongMs = 60000;

struct PeerState {
  int32_t state, tag;
  bool operator==(const PeerState &) const = default;
};
inline std::ostream &operator<<(std::ostream &out, const PeerState &peer) {
  return out << "state " << peer.state << ", tag " << peer.tag;
}

// One end, with calls that read like the contract.
class End {
 public:
  enum class Slice { kDone, kNotYet, kFailed };
  explicit End(const TransportEnd &end) : end_(end) {}

  int rank() const { return end_.table.rank; }
  int nranks() const { return end_.table.nranks; }
  void *send(const void *data, uint64_t bytes, int peer, int tag = 0) {
    void *request = nullptr;
    EXPECT_EQ(end_.table.send(end_.user, data, bytes, peer, tag, nullptr, &request), LASP_OK);
    return request;
  }
  void *receive(void *data, uint64_t bytes, int peer, int tag = 0) {
    void *request = nullptr;
    EXPECT_EQ(end_.table.receive(end_.user, data, bytes, peer, tag, nullptr, &request), LASP_OK);
    return request;
  }
  bool test(void *request) {
    int32_t done = -1;
    EXPECT_EQ(end_.table.test(end_.user, request, &done), LASP_OK);
    return done == 1;
  }
  lasp_status wait(void *request, int64_t limit_ms = kLongMs, int32_t *lost_rank = nullptr) {
    int32_t ignored = -1;
    return end_.table.wait(end_.user, request, limit_ms, lost_rank ? lost_rank : &ignored);
  }
  Slice wait_for(void *request, int64_t most_ms) {
    int32_t done = -1, lost_rank = -1;
    if (end_.table.wait_for(end_.user, request, most_ms, &done, &lost_rank) != LASP_OK) return Slice::kFailed;
    return done == 1 ? Slice::kDone : Slice::kNotYet;
  }
  PeerState peer_state(int32_t rank) {
    PeerState peer{LASP_PEER_UNKNOWN, -1};
    end_.table.peer_state(end_.user, rank, &peer.state, &peer.tag);
    return peer;
  }
  void cancel(void *request) { end_.table.cancel(end_.user, request); }
  void abort(int lost_rank) { end_.table.abort(end_.user, lost_rank); }
  void destroy() { end_.table.destroy(end_.user); }

 private:
  TransportEnd end_;
};

// A group whose ends are destroyed with it, unless a test did so itself. No test of one takes long.
class Group {
 public:
  explicit Group(int nranks) {
    for (const TransportEnd &end : lasp::make_thread_transport(nranks)) ends_.emplace_back(end);
    alive_.assign(nranks, 1);
  }
  ~Group() {
    for (size_t rank = 0; rank < ends_.size(); ++rank) destroy(rank);
  }
  End &operator[](size_t rank) { return ends_[rank]; }
  void destroy(size_t rank) {
    if (std::exchange(alive_[rank], 0)) ends_[rank].destroy();
  }
  // Runs `body` once per rank, each in its own thread.
  void run(const std::function<void(End &)> &body) {
    std::vector<std::thread> threads;
    for (End &end : ends_) threads.emplace_back([&body, &end] { body(end); });
    for (std::thread &thread : threads) thread.join();
  }

 private:
  lasp_test::Deadline deadline_{"the calls of a group of ranks"};
  std::vector<End> ends_;
  std::vector<char> alive_;
};

}  // namespace transport_rig
