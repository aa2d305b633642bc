// One rank's end of a group: the transport seam with what the engine adds to it - byte counts, time limits,
// sentences for failures, and the memory that a broken group stays broken.
#pragma once

#include <lasp/lasp.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "comm/tags.h"
#include "comm/trace.h"
#include "comm/wait.h"

namespace lasp {

// kDetached: a place in a group without a transport. kAssumed: the like for nobody but lasp_problem_get_info, where
// work is laid out as if there were one.
enum class CommKind : int32_t { kSelf, kThreads, kCustom, kNccl, kDetached, kAssumed };

struct NcclGroup;  // cuda/transport/nccl_library.h

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
  // There are other ranks, and no way to send them anything.
  bool detached() const { return kind_ == CommKind::kDetached && nranks() > 1; }
  // The others cannot be asked, and are taken to be as this rank is.
  bool assumes_others() const { return detached() || (kind_ == CommKind::kAssumed && nranks() > 1); }
  // Whether break_group tells the other ranks whom they lose. Over NCCL nobody can be told.
  bool tells_others() const { return table_.abort != nullptr; }
  int32_t memory() const { return table_.memory; }  // LASP_DEVICE_*
  const NcclGroup *nccl() const { return nccl_.get(); }
  double latency_us() const { return table_.latency_us; }
  double bandwidth_gbs() const { return table_.bandwidth_gbs; }
  lasp_traffic traffic() const { return traffic_; }

  int32_t next_operation(OperationKind kind) { return operations_.next(kind); }
  uint32_t operations() const { return operations_.count(); }  // so far

  // The call in progress, for sentences; a literal.
  void enter(const char *call) { call_ = call; }
  const char *call() const { return call_; }

  // What this rank does is recorded here; null: it is not. Changed between calls alone.
  Trace *trace() const { return trace_; }
  void set_trace(Trace *trace) { trace_ = trace; }

  // Marks the group unusable and tells the others as far as the transport can. From any thread.
  void abort();
  // Throws the reason when the group is broken or aborted.
  void require_usable() const;
  // LASP_OK, or the status that require_usable would throw. From any thread.
  lasp_status async_status() const;
  // What require_usable would throw. From any thread.
  std::optional<Error> async_error() const;
  // Remembers why the group is broken, and tells the others whom they lose (-1: it was aborted) as far as the
  // transport can. The first reason stands.
  void break_group(lasp_status status, const char *reason, int32_t lost_rank) noexcept;
  // The same, and throws the error.
  [[noreturn]] void lose(const Error &error, int32_t lost_rank);
  // What a call that failed with this error owes the others, who would wait for it: after 4xx they lose this rank,
  // and after a refusal (1xx, 2xx) when `others_wait` for the refused call.
  void give_up(const Error &error, bool others_wait) noexcept;
  // As lose, for bytes of `peer`'s whose checksum is wrong; `what` as in wait(). `packed`: it may also have other
  // offsets.
  [[noreturn]] void lose_damaged(uint64_t bytes, int32_t peer, const char *what, bool packed = false);

  // What has gone onto the transport; Messages and the links of devices call it.
  void count_sent(uint64_t bytes);
  void count_received(uint64_t bytes);

  // Used by Messages only. `stream` for transports between device memories.
  void *send(const void *data, uint64_t bytes, int32_t peer, int32_t tag, lasp_stream stream);
  void *receive(void *data, uint64_t bytes, int32_t peer, int32_t tag, lasp_stream stream);
  lasp_status test(void *request, bool &done);
  void wait(void *request, const WaitPolicy &policy, const char *what, int32_t peer);
  void cancel(void *request) { table_.cancel(user_, request); }

  // Held by the one call in progress; a second thread is refused.
  std::atomic<bool> in_use{false};

 private:
  lasp_status wait_in_slices(Wait &wait, void *request, int32_t *lost_rank);
  // What the transport answered to something other than a wait.
  void check(lasp_status status, const char *what, int32_t peer);
  [[noreturn]] void failed(lasp_status status, const Wait &wait, int32_t lost_rank);
  std::string why_lost(int32_t lost, const Wait &wait) const;
  std::string out_of_step(int32_t lost, const Wait &wait) const;
  int32_t peer_state(int32_t rank, int32_t *tag) const;

  lasp_transport table_;
  void *user_;
  CommKind kind_;
  std::shared_ptr<const NcclGroup> nccl_;
  std::string name_;
  lasp_traffic traffic_ = LASP_TRAFFIC_INIT;
  OperationNumbers operations_;
  const char *call_ = "lasp_plan_create";
  Trace *trace_ = nullptr;
  std::atomic<lasp_status> broken_{LASP_OK};
  // The first reason, which stands: a thread that watches may find it as well as the one in a call.
  mutable std::mutex reason_mutex_;
  char reason_[1024] = "";
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
  // A number made of the offsets that this call is packed by, for checksums of messages; 0: there are none.
  void set_packing(uint64_t sum) { packing_ = sum; }
  // The index to wait on.
  size_t send(Comm &comm, const void *data, uint64_t bytes, int32_t peer, int32_t tag,
              lasp_stream stream = nullptr);
  size_t receive(Comm &comm, void *data, uint64_t bytes, int32_t peer, int32_t tag, lasp_stream stream = nullptr);
  bool test(Comm &comm, size_t index);
  bool test_all(Comm &comm);
  // Ends the message; `what` as Wait has it.
  void wait(Comm &comm, size_t index, const WaitPolicy &policy, const char *what);
  void wait_all(Comm &comm, const WaitPolicy &policy, const char *what);
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
    uint32_t operation;  // these two where there is a trace
    int64_t begin_ns;
  };
  Open &add(void *request, const void *data, uint64_t bytes, int32_t peer, int32_t tag, bool receives);
  void record(Comm &comm, const Open &message) const;
  void clear() {
    open_.clear();
    test_failed_ = false;
  }
  bool verifies() const { return !checksums_.empty(); }
  uint64_t checksum_of(const Open &message, int32_t sender) const;

  std::vector<Open> open_;
  std::vector<uint64_t> checksums_;  // by index: to be sent, or as they arrive; none: nothing is verified
  uint64_t packing_ = 0;
  bool counted_, test_failed_ = false;
};

}  // namespace lasp
