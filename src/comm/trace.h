// What a rank did when: records of a fixed size in a ring that is taken when a trace begins. Everything is recorded
// on the thread that is inside a call, of which a comm has one at a time. Knows no device and no file.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace lasp {

enum class Traced : int32_t {
  kCall,      // a function of the interface
  kPhase,     // a part of a pass, on the host
  kWait,      // for `peer`
  kSend,      // from its start until it was seen to be through; those between device memories have a `group`
  kReceive,   // likewise
  kDevice,    // work on a stream
  kMessages,  // a group of messages on a stream
};

struct TraceRecord {
  static constexpr uint32_t kFailed = 1, kCaptured = 2;

  Traced kind = Traced::kCall;
  uint32_t flags = 0;
  int64_t begin_ns = 0, end_ns = 0;  // of Trace::now()
  uint64_t bytes = 0;
  const char *name = "";   // static
  uint32_t operation = 0;  // Comm::operations(), the same on all ranks
  int32_t tag = -1, peer = -1;
  int32_t lane = 0;    // on a device: which stream
  uint32_t call = 0;   // the number of the call that it belongs to
  uint32_t group = 0;  // of messages on a device: the number of their kMessages; 0: none
};
static_assert(sizeof(TraceRecord) == 64, "lasp_trace_options says so");

class Trace {
 public:
  // Throws std::bad_alloc.
  explicit Trace(size_t capacity)
      : records_(std::make_unique_for_overwrite<TraceRecord[]>(capacity)), capacity_(capacity) {}

  // The clock of all records: monotonic, and the same for all processes of a machine.
  static int64_t now() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }

  // Of the call in progress.
  void add(TraceRecord record) {
    record.call = call_;
    add_of_call(record);
  }
  // With its own number of a call.
  void add_of_call(const TraceRecord &record) { records_[count_++ % capacity_] = record; }
  uint32_t call() const { return call_; }
  void next_call() { ++call_, captured_ = false; }
  uint32_t next_group() { return ++groups_; }
  // The call in progress is captured into a graph.
  void set_captured() { captured_ = true; }
  bool captured() const { return captured_; }

  size_t size() const { return count_ < capacity_ ? static_cast<size_t>(count_) : capacity_; }
  uint64_t dropped() const { return count_ - size(); }  // the oldest
  const TraceRecord &operator[](size_t i) const { return records_[(dropped() + i) % capacity_]; }

 private:
  std::unique_ptr<TraceRecord[]> records_;
  size_t capacity_;
  uint64_t count_ = 0;
  uint32_t call_ = 1, groups_ = 0;
  bool captured_ = false;
};

// Records the time for which it lives. Without a trace it does nothing.
class TraceSpan {
 public:
  TraceSpan(Trace *trace, Traced kind, const char *name, int32_t peer = -1);
  ~TraceSpan();
  TraceSpan(const TraceSpan &) = delete;
  TraceSpan &operator=(const TraceSpan &) = delete;

 private:
  Trace *trace_;
  Traced kind_;
  const char *name_;
  int32_t peer_;
  int exceptions_ = 0;
  int64_t begin_ns_ = 0;
};

}  // namespace lasp
