// One rank's end of a group: the transport seam with what the engine adds to it - byte counts, time limits,
// sentences for failures, and the memory that a broken group stays broken.
#pragma once

#include <lasp/lasp.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "status.h"

namespace lasp {

// What moves messages: one number of its own for each.
enum class OperationKind : int32_t { kForward = 1, kBackward = 2, kFinalState = 3 };

enum class CommKind : int32_t { kSelf, kThreads, kCustom, kNccl };

struct NcclGroup;  // cuda/nccl_library.h

class Comm {
 public:
  // `nccl` for kNccl alone, whose table has no functions that work: its messages go by cuda/.
  Comm(const lasp_transport &transport, void *user, CommKind kind = CommKind::kCustom,
       std::shared_ptr<const NcclGroup> nccl = nullptr);
  ~Comm();
  Comm(const Comm &) = delete;
  Comm &operator=(const Comm &) = delete;

  // What the destructor calls: set once the comm is the user's to destroy.
  void set_destroy(void (*destroy)(void *user)) { table_.destroy = destroy; }

  int32_t rank() const { return table_.rank; }
  int32_t nranks() const { return table_.nranks; }
  int32_t local_ranks() const { return table_.local_ranks; }
  const std::string &name() const { return name_; }
  CommKind kind() const { return kind_; }
  int32_t memory() const { return table_.memory; }  // LASP_DEVICE_*
  const NcclGroup *nccl() const { return nccl_.get(); }
  double latency_us() const { return table_.latency_us; }
  double bandwidth_gbs() const { return table_.bandwidth_gbs; }
  lasp_traffic traffic() const { return traffic_; }

  // The number that an operation's tags are made of: its place in the order of this rank's calls, and a trace of
  // what kinds of calls it and those before it were. Ranks whose calls are out of step, or once made different
  // calls, so wait in vain instead of taking one message for another, also where a transport let the wrong call
  // through. At most 512 * 13, for MPI promises tags up to 32,767.
  int32_t next_operation(OperationKind kind) {
    enter(kind == OperationKind::kBackward ? "lasp_backward" : "lasp_forward");
    history_ = (2 * history_ + static_cast<int32_t>(kind)) % 13;
    return (operation_++ & 511) * 13 + history_;
  }

  // The call that messages now belong to, for sentences; a literal.
  void enter(const char *call) { call_ = call; }

  // Marks the group unusable and tells the others as far as the transport can. From any thread.
  void abort();
  // Throws the reason when the group is broken or aborted.
  void require_usable() const;
  // LASP_OK, or the status that require_usable would throw. From any thread.
  lasp_status async_status() const;
  // Remembers why the group is broken, tells the others whom they lose as far as the transport can, and throws.
  [[noreturn]] void lose(const Error &error, int32_t lost_rank);
  // The same for bytes of `peer`'s whose checksum is wrong; `what` as in wait().
  [[noreturn]] void lose_damaged(uint64_t bytes, int32_t peer, const char *what);
  // The same without a sentence or a throw, for a rank that has no memory left for either.
  void lose_for_want_of_memory() noexcept;

  // What has gone onto the transport; Messages and the links of devices call it.
  void count_sent(uint64_t bytes);
  void count_received(uint64_t bytes);

  // Used by Messages only. `stream` for transports between device memories.
  void *send(const void *data, uint64_t bytes, int32_t peer, int32_t tag, lasp_stream stream);
  void *receive(void *data, uint64_t bytes, int32_t peer, int32_t tag, lasp_stream stream);
  lasp_status test(void *request, bool &done);
  void wait(void *request, int64_t time_limit_ms, const char *what, int32_t peer);
  void cancel(void *request) { table_.cancel(user_, request); }

  // Held by the one call in progress; a second thread is refused.
  std::atomic<bool> in_use{false};

 private:
  void check(lasp_status status, const char *what, int32_t peer, int32_t lost_rank, int64_t time_limit_ms);

  lasp_transport table_;
  void *user_;
  CommKind kind_;
  std::shared_ptr<const NcclGroup> nccl_;
  std::string name_;
  lasp_traffic traffic_ = LASP_TRAFFIC_INIT;
  uint32_t operation_ = 0;
  int32_t history_ = 0;  // of the kinds of all operations
  const char *call_ = "lasp_plan_create";
  std::atomic<lasp_status> broken_{LASP_OK};
  std::string reason_;  // written before broken_ by the thread in the call, read by later calls
};

// Messages in flight of one operation. Whatever is still in flight when it goes away is cancelled, so that no
// buffer is touched after a failed call. Storage is reserved at plan creation.
class Messages {
 public:
  // What a link of devices says to its peers about messages is not itself counted as traffic.
  enum class Count : bool { kNo, kYes };
  explicit Messages(Count count = Count::kYes) : counted_(count == Count::kYes) {}

  // For so many at once. `verify`: each is followed by a second one of the same tag with its checksum, which is not
  // counted as traffic, and wait() compares.
  void reserve(size_t count, bool verify = false);
  // The index to wait on.
  size_t send(Comm &comm, const void *data, uint64_t bytes, int32_t peer, int32_t tag,
              lasp_stream stream = nullptr);
  size_t receive(Comm &comm, void *data, uint64_t bytes, int32_t peer, int32_t tag, lasp_stream stream = nullptr);
  bool test(Comm &comm, size_t index);
  bool test_all(Comm &comm);
  // Ends the message; `what` completes the sentence "rank 2 did not come ... while <what>".
  void wait(Comm &comm, size_t index, int64_t time_limit_ms, const char *what);
  void wait_all(Comm &comm, int64_t time_limit_ms, const char *what);
  void cancel_all(Comm &comm) noexcept;

 private:
  struct Open {
    void *request;  // the transport's; null is as good as any
    void *checksum_request;
    const void *data;
    uint64_t bytes;
    int32_t peer, tag;
    uint32_t number;  // among those of this peer, tag and direction, where they are verified
    bool receives, ended, checksum_ended;
  };
  Open &add(void *request, const void *data, uint64_t bytes, int32_t peer, int32_t tag, bool receives);
  void clear() {
    open_.clear();
    test_failed_ = false;
  }
  bool verifies() const { return !checksums_.empty(); }
  uint64_t checksum_of(const Open &message, int32_t sender) const;

  std::vector<Open> open_;
  std::vector<uint64_t> checksums_;  // by index: to be sent, or as they arrive; none: nothing is verified
  bool counted_, test_failed_ = false;
};

}  // namespace lasp
