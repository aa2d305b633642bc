// A message of the in-process transport, the pool that a rank takes its messages from, and the mailbox in which a
// message waits for its other half. Plain data structures: the locking is threads.cpp's.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace lasp::thread_transport {

enum class Phase : uint8_t {
  kIdle,     // in no mailbox: free, or never to be matched because the group is broken
  kPosted,   // in a mailbox, its other half has not come
  kCopying,  // matched; some thread is copying
  kDone
};

struct alignas(64) Request {
  Request *next = nullptr;      // in the mailbox; in the pool's free list
  Request *previous = nullptr;  // in the mailbox
  void *data = nullptr;
  uint64_t bytes = 0;
  int32_t owner = 0;
  int32_t peer = 0;
  int32_t tag = 0;
  bool is_send = false;
  // Written under the group's mutex; read without it where a rank looks at its own request.
  std::atomic<Phase> phase{Phase::kIdle};
};

// A rank's requests: used by that rank's thread only.
class RequestPool {
 public:
  RequestPool() { grow(); }

  Request *take() {
    if (!free_) grow();
    Request *request = free_;
    free_ = request->next;
    request->next = nullptr;
    return request;
  }

  void give_back(Request *request) {
    request->phase.store(Phase::kIdle, std::memory_order_relaxed);
    request->next = free_;
    free_ = request;
  }

  template <class Visit>
  void for_each(Visit visit) {
    for (auto &block : blocks_) {
      for (size_t i = 0; i < kBlock; ++i) visit(&block[i]);
    }
  }

 private:
  static constexpr size_t kBlock = 32;

  void grow() {
    blocks_.push_back(std::make_unique<Request[]>(kBlock));
    for (size_t i = 0; i < kBlock; ++i) give_back(&blocks_.back()[i]);
  }

  std::vector<std::unique_ptr<Request[]>> blocks_;
  Request *free_ = nullptr;
};

// The unmatched requests from one rank to another, oldest first: sends and receives of any tag. A send and a
// receive of one tag are never in it together.
struct Mailbox {
  Request *head = nullptr;
  Request *tail = nullptr;

  Request *find(bool is_send, int32_t tag) const {
    Request *request = head;
    while (request && (request->is_send != is_send || request->tag != tag)) request = request->next;
    return request;
  }

  void append(Request *request) {
    request->next = nullptr;
    request->previous = tail;
    (tail ? tail->next : head) = request;
    tail = request;
  }

  void remove(Request *request) {
    (request->previous ? request->previous->next : head) = request->next;
    (request->next ? request->next->previous : tail) = request->previous;
    request->next = request->previous = nullptr;
  }
};

}  // namespace lasp::thread_transport
