// A context's trace: when it begins and ends, and where it is written to; also without a word of the program's, by
// the environment variable LASP_TRACE.
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>

#include "comm/comm.h"
#include "comm/trace.h"
#include "engine/device.h"

namespace lasp {

class Tracing {
 public:
  // All outlive it.
  Tracing(Comm &comm, Device &device, const Log &log) : comm_(comm), device_(device), log_(log) {}
  // Writes the file of LASP_TRACE.
  ~Tracing();
  Tracing(const Tracing &) = delete;
  Tracing &operator=(const Tracing &) = delete;

  // 0: the default. Throws Error.
  void start(int64_t max_records);
  void stop();
  void write(const char *path);
  // Nothing where the variable is not set, or where the comm has a trace.
  void start_by_environment();

 private:
  struct CloseFile {
    void operator()(std::FILE *file) const { std::fclose(file); }
  };
  using File = std::unique_ptr<std::FILE, CloseFile>;

  bool on() const { return trace_ != nullptr && comm_.trace() == trace_.get(); }
  void begin(size_t records);
  bool put(File file);

  Comm &comm_;
  Device &device_;
  const Log &log_;
  std::unique_ptr<Trace> trace_;
  std::string path_;  // where LASP_TRACE began this trace
  File file_;
};

}  // namespace lasp
