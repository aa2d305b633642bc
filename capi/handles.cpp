#include "handles.h"

#include <exception>
#include <mutex>
#include <unordered_map>

#include "base/at_fork.h"

namespace lasp {
namespace {

struct Entry {
  Kind kind;
  int64_t generation;
};

std::mutex mutex;  // of all that follows
// Made with the first handle and never destroyed, so that handles may be freed from static destructors of the
// caller's.
std::unordered_map<const void *, Entry> *handles = nullptr;
// How many forks lie between the process that first made a handle and this one. A handle of an earlier generation
// is another process's: what it stands for may be half changed, its mutexes locked, its threads are not here.
int64_t generation = 0;

void begin_generation() { ++generation; }
using Forks = AtFork<mutex, begin_generation>;

const char *kind_name(Kind kind) {
  switch (kind) {
    case Kind::kComm: return "comm";
    case Kind::kContext: return "context";
    case Kind::kPlan: return "plan";
    case Kind::kHalo: return "halo";
  }
  return "handle";
}

}  // namespace

void InUse::begin_span() {
  begin_ns_ = Trace::now();
  exceptions_ = std::uncaught_exceptions();
}

void InUse::end_span() noexcept {
  if (begin_ns_ == 0) return;
  Trace &trace = *comm_.trace();
  TraceRecord record{.begin_ns = begin_ns_, .end_ns = Trace::now(), .name = comm_.call()};
  if (std::uncaught_exceptions() > exceptions_) record.flags |= TraceRecord::kFailed;
  if (trace.captured()) record.flags |= TraceRecord::kCaptured;
  trace.add(record);
  trace.next_call();
}

Kind kind_of(const lasp_comm *) { return Kind::kComm; }
Kind kind_of(const lasp_context *) { return Kind::kContext; }
Kind kind_of(const lasp_plan *) { return Kind::kPlan; }
Kind kind_of(const lasp_halo *) { return Kind::kHalo; }

void register_handle(const void *handle, Kind kind) {
  Forks::install();
  std::lock_guard lock(mutex);
  if (handles == nullptr) handles = new std::unordered_map<const void *, Entry>;
  handles->emplace(handle, Entry{kind, generation});
}

void unregister_handle(const void *handle) {
  std::lock_guard lock(mutex);
  handles->erase(handle);
}

void require_live(const void *handle, Kind kind, const char *name) {
  std::lock_guard lock(mutex);
  const Entry *entry = nullptr;
  if (handles != nullptr)
    if (const auto found = handles->find(handle); found != handles->end()) entry = &found->second;
  if (entry == nullptr)
    throw fail(LASP_ERROR_INVALID_HANDLE, "%s: not a live %s (never made, or already destroyed)", name,
               kind_name(kind));
  if (entry->kind != kind)
    throw fail(LASP_ERROR_INVALID_HANDLE, "%s: this is a %s, not a %s", name, kind_name(entry->kind),
               kind_name(kind));
  if (entry->generation != generation)
    throw fail(LASP_ERROR_INVALID_HANDLE, "%s: made in the process that forked this one; make a new one here",
               name);
}

}  // namespace lasp
