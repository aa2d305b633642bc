#include "handles.h"

#include <mutex>
#include <unordered_map>

namespace lasp {
namespace {

struct Register {
  std::mutex mutex;
  std::unordered_map<const void *, Kind> live;
};

// Never destroyed, so that handles may be freed from static destructors of the caller's.
Register &the_register() {
  static Register *const instance = new Register;
  return *instance;
}

const char *kind_name(Kind kind) {
  return kind == Kind::kComm ? "comm" : kind == Kind::kContext ? "context" : "plan";
}

}  // namespace

Kind kind_of(const lasp_comm *) { return Kind::kComm; }
Kind kind_of(const lasp_context *) { return Kind::kContext; }
Kind kind_of(const lasp_plan *) { return Kind::kPlan; }

void register_handle(const void *handle, Kind kind) {
  Register &r = the_register();
  std::lock_guard lock(r.mutex);
  r.live.emplace(handle, kind);
}

void unregister_handle(const void *handle) {
  Register &r = the_register();
  std::lock_guard lock(r.mutex);
  r.live.erase(handle);
}

void require_live(const void *handle, Kind kind, const char *name) {
  Register &r = the_register();
  std::lock_guard lock(r.mutex);
  const auto found = r.live.find(handle);
  if (found == r.live.end())
    throw fail(LASP_ERROR_INVALID_HANDLE, "%s: not a live %s (never made, or already destroyed)", name,
               kind_name(kind));
  if (found->second != kind)
    throw fail(LASP_ERROR_INVALID_HANDLE, "%s: this is a %s, not a %s", name, kind_name(found->second),
               kind_name(kind));
}

}  // namespace lasp
