// A context's messages to its caller: which levels are wanted, and the one place that writes them. Takes no memory.
#pragma once

#include <lasp/lasp.h>

#include <cstdint>

namespace lasp {

class Log {
 public:
  Log() = default;  // silent
  Log(int32_t level, lasp_log_function function, void *user) : level_(level), function_(function), user_(user) {}

  // Ask before gathering what a message needs.
  bool wants(int32_t level) const { return function_ != nullptr && level <= level_; }
  // printf-style; nothing happens at a level that is not wanted. A message is cut at 1023 bytes.
  [[gnu::format(printf, 3, 4)]] void write(int32_t level, const char *format, ...) const;

 private:
  int32_t level_ = LASP_LOG_OFF;
  lasp_log_function function_ = nullptr;
  void *user_ = nullptr;
};

}  // namespace lasp
