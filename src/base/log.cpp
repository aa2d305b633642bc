#include "base/log.h"

#include <cstdarg>
#include <cstdio>

namespace lasp {

void Log::write(int32_t level, const char *format, ...) const {
  if (!wants(level)) return;
  char text[1024];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  function_(user_, level, text);
}

}  // namespace lasp
