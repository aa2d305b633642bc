// A group of several ranks on one thread, over the caller's own transport: where a rank waits for a message that is
// not there, the rank that has to send it runs its own call, inside the wait. Every schedule gets through, without
// a thread, and the same input always does the same.
#pragma once

#include <lasp/lasp.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include "draw.h"

namespace lasp_fuzz {

// What a hostile group does to its members: each hook may change what a transport answers.
struct Hooks {
  // A message of rank `from` as it is about to be delivered to rank `to`.
  std::function<void(int32_t from, int32_t to, unsigned char *bytes, uint64_t size)> deliver;
  // What send (0), receive (1), test (2) or wait (3) of a rank answers instead of LASP_OK.
  std::function<lasp_status(int32_t rank, int32_t function)> answer;
};

class Group {
 public:
  struct Options {
    int32_t nranks = 2;
    bool verify_messages = false;
    bool sums_up = true;  // a message that no rank took, or one of another size, is a defect
    Hooks hooks;
  };
  explicit Group(Options options);
  ~Group();
  Group(const Group &) = delete;
  Group &operator=(const Group &) = delete;

  int32_t nranks() const { return options_.nranks; }
  lasp_context *context(int32_t rank) const { return end(rank).context; }
  lasp_comm *comm(int32_t rank) const { return end(rank).comm; }

  // One call by every rank, beginning with `first`; what each answered.
  using Call = std::function<lasp_status(int32_t rank)>;
  const std::vector<lasp_status> &all(const Call &call, int32_t first = 0);

 private:
  struct Letter {
    int32_t from, to, tag;
    std::vector<unsigned char> bytes;
  };
  struct Request {
    void *data;
    uint64_t bytes;
    int32_t peer, tag;
    bool receives, open;
  };
  struct End {
    Group *group = nullptr;
    int32_t rank = 0;
    bool running = false, done = false;
    std::deque<Request> requests;
    lasp_comm *comm = nullptr;
    lasp_context *context = nullptr;
  };
  End &end(int32_t rank) { return ends_[static_cast<size_t>(rank)]; }
  const End &end(int32_t rank) const { return ends_[static_cast<size_t>(rank)]; }
  lasp_transport table(int32_t rank) const;
  lasp_status answer(const End &end, int32_t function) const;
  std::vector<Letter>::iterator letter_for(const End &end, const Request &request);
  void run(int32_t rank);
  lasp_status wait(End &end, Request &request, int32_t *lost_rank);

  Options options_;
  std::vector<End> ends_;
  std::vector<Letter> letters_;
  const Call *call_ = nullptr;
  std::vector<lasp_status> statuses_;
};

}  // namespace lasp_fuzz
