#include "engine/tracing.h"

#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "engine/trace_file.h"
#include "engine/trace_path.h"

namespace lasp {
namespace {

constexpr int64_t kDefaultRecords = 1 << 16, kMostRecords = 1 << 26;
// For what the device has still to do where the file of LASP_TRACE is written: nobody else can wait for it.
constexpr auto kLastWork = std::chrono::seconds(1);

}  // namespace

Tracing::~Tracing() {
  if (on()) comm_.set_trace(nullptr);
  if (!file_ || !trace_) return;
  try {
    const auto end = std::chrono::steady_clock::now() + kLastWork;
    while (device_.collect_times().unfinished > 0 && std::chrono::steady_clock::now() < end)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (put(std::move(file_))) return;
  } catch (...) {
    log_.write(LASP_LOG_WARNING, "LASP_TRACE: %s", current_error().sentence.c_str());
    return;
  }
  log_.write(LASP_LOG_WARNING, "LASP_TRACE: %s was not written: %s", path_.c_str(), std::strerror(errno));
}

void Tracing::begin(size_t records) {
  auto trace = std::make_unique<Trace>(records);
  device_.start_trace(*trace);
  trace_ = std::move(trace);
  comm_.set_trace(trace_.get());
}

void Tracing::start(int64_t max_records) {
  if (max_records < 0 || max_records > kMostRecords)
    throw fail(LASP_ERROR_INVALID_ARGUMENT, "options.max_records = %lld: must be 0 (%lld) to %lld",
               static_cast<long long>(max_records), static_cast<long long>(kDefaultRecords),
               static_cast<long long>(kMostRecords));
  if (comm_.trace() != nullptr)
    throw fail(LASP_ERROR_IN_USE, "context: %s",
               !on()           ? "its comm is traced by another context"
               : path_.empty() ? "it is traced already; stop that trace first"
                               : "it is traced already, by LASP_TRACE");
  begin(static_cast<size_t>(max_records == 0 ? kDefaultRecords : max_records));
}

void Tracing::stop() {
  if (!on()) throw fail(LASP_ERROR_INVALID_ARGUMENT, "context: it is not traced; lasp_trace_start begins a trace");
  comm_.set_trace(nullptr);
}

bool Tracing::put(File file) {
  const DeviceTimes times = device_.collect_times();
  const TraceOrigin origin{comm_.rank(), comm_.nranks(), comm_.name(), device_.description(), times};
  const bool written = write_trace(file.get(), *trace_, origin);
  return std::fclose(file.release()) == 0 && written;
}

void Tracing::write(const char *path) {
  if (!trace_)
    throw fail(LASP_ERROR_INVALID_ARGUMENT, "context: nothing was recorded; call lasp_trace_start first");
  File file(std::fopen(path, "we"));
  if (!file) throw fail(LASP_ERROR_INVALID_ARGUMENT, "path = \"%s\": %s", path, std::strerror(errno));
  if (!put(std::move(file)))
    throw fail(LASP_ERROR_INVALID_ARGUMENT, "path = \"%s\": it was not written to the end: %s", path,
               std::strerror(errno));
}

// The file is opened now, so that what keeps it from being written is said while somebody listens; and locked, so
// that no other process has the same.
void Tracing::start_by_environment() {
  const char *const pattern = secure_getenv("LASP_TRACE");
  if (pattern == nullptr || *pattern == 0 || comm_.trace() != nullptr) return;
  path_ = trace_path(pattern, comm_.rank(), comm_.nranks());
  file_.reset(std::fopen(path_.c_str(), "ae"));
  if (!file_)
    throw fail(LASP_ERROR_INVALID_ARGUMENT, "LASP_TRACE = %s: %s: %s", pattern, path_.c_str(),
               std::strerror(errno));
  const int descriptor = fileno(file_.get());
  if (flock(descriptor, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    file_.reset();
    throw fail(LASP_ERROR_INVALID_ARGUMENT, "LASP_TRACE = %s: another trace is written to %s; %%p is the process",
               pattern, path_.c_str());
  }
  if (ftruncate(descriptor, 0) != 0) errno = 0;  // a pipe or a terminal has no length
  begin(static_cast<size_t>(kDefaultRecords));
  log_.write(LASP_LOG_INFO, "trace: to %s, when the context is destroyed", path_.c_str());
}

}  // namespace lasp
