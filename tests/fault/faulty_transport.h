// A transport for tests: the ends of another one, with one fault at a chosen message or call. It also keeps a list
// of what the library does against the contract of lasp_transport.
#pragma once

#include <lasp/lasp.h>

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <vector>

namespace lasp_fault {

enum class Fault {
  kNone,
  kDrop,         // the n-th message that this end sends never arrives
  kCut,          // nor does any later one to the same peer
  kCorrupt,      // one bit of the n-th message that this end receives is changed
  kFailSend,     // the n-th call of this function returns `status`
  kFailReceive,  //
  kFailTest,     // and so does the `wait` that follows, or, by the seed's lowest bit, all is well after all
  kFailWait,     // `wait` and `wait_for` of one message count once
  kStop,         // the n-th call but of `test` does not return before release()
  kDelay,  // every message arrives late, by up to 2 ms: across peers in another order, never within a pair and tag
};

struct Injection {
  Fault fault = Fault::kNone;
  int64_t at = 0;  // counted from 1, from arm() on
  lasp_status status = LASP_ERROR_TRANSPORT;
  uint64_t seed = 0;  // of kCorrupt: the bit, modulo their number
};

struct Counts {
  int64_t sends = 0, receives = 0, waits = 0, tests = 0;
  std::vector<uint64_t> received;  // the bytes of each receive
  int64_t calls() const { return sends + receives + waits; }
};

class FaultyEnd {
 public:
  // Takes the inner end over.
  FaultyEnd(const lasp_transport &inner, void *user, uint64_t seed);
  FaultyEnd(const FaultyEnd &) = delete;
  FaultyEnd &operator=(const FaultyEnd &) = delete;

  lasp_transport table() const;  // its user is this

  // From the rank's own thread, between calls: counting begins anew.
  void arm(const Injection &injection);
  const Counts &counts() const { return counts_; }
  bool reached() const { return reached_; }
  int32_t affected_peer() const { return affected_peer_; }

  // What an end that stops does in the meantime; it returns when the end may go on.
  std::function<void()> stopped = [] {};

  // "" or what the library did that the contract rules out.
  const std::string &misuse() const { return misuse_; }
  int64_t open() const { return static_cast<int64_t>(held_.size()); }
  bool destroyed() const { return destroyed_; }

 private:
  struct Held;

  lasp_status send(const void *data, uint64_t bytes, int32_t peer, int32_t tag, void **request);
  lasp_status receive(void *data, uint64_t bytes, int32_t peer, int32_t tag, void **request);
  lasp_status test(Held *held, int32_t *done);
  lasp_status wait(Held *held, int64_t time_limit_ms, int32_t *lost_rank);
  lasp_status wait_for(Held *held, int64_t most_ms, int32_t *done, int32_t *lost_rank);
  lasp_status begin_wait(Held *held);
  void deliver(Held *held);
  void cancel(Held *held);
  void destroy();

  // Whether this is the n-th for `fault`.
  bool strikes(Fault fault, int64_t count, int32_t peer);
  bool stops(int32_t peer);
  Held *hold(int32_t peer, int32_t tag, uint64_t bytes);
  lasp_status failed(lasp_status status);
  void require_unbroken(const char *call);
  void finish(Held *held);
  void blame(const std::string &what);
  uint64_t random();

  lasp_transport inner_;
  void *user_;
  uint64_t random_;
  Injection injection_;
  Counts counts_;
  bool reached_ = false, destroyed_ = false, broken_ = false;
  int32_t affected_peer_ = -1, cut_peer_ = -1;
  std::set<Held *> held_;
  std::string misuse_;
};

}  // namespace lasp_fault
