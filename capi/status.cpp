// lasp_last_error, lasp_set_last_error, lasp_status_name.
#include "base/status.h"

#include <cstring>

#include "guarded.h"

namespace lasp {
namespace {

// Plain bytes: nothing to construct or destroy when threads come and go.
thread_local char last_error[1024];

}  // namespace

void set_last_error(const char *sentence) noexcept {
  std::strncpy(last_error, sentence, sizeof last_error - 1);
  last_error[sizeof last_error - 1] = 0;
}

}  // namespace lasp

const char *lasp_last_error(void) { return lasp::last_error; }

lasp_status lasp_set_last_error(lasp_status status, const char *sentence) {
  lasp::set_last_error(sentence != nullptr ? sentence : "");
  return status;
}

const char *lasp_status_name(lasp_status status) { return lasp::status_name(status); }
