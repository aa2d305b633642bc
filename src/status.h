// How the engine refuses: an exception that carries a status and one sentence. It never leaves capi/guarded.h.
#pragma once

#include <lasp/lasp.h>

#include <cstdarg>
#include <cstdint>
#include <string>

namespace lasp {

struct Error {
  lasp_status status;
  std::string sentence;
};

// printf-style construction: throw fail(LASP_ERROR_INVALID_ARGUMENT, "batch = %lld: must be at least 1", b).
[[gnu::format(printf, 2, 3)]] Error fail(lasp_status status, const char *format, ...);

// "LASP_ERROR_PEER_LOST"; "unknown status" for others. Static.
const char *status_name(lasp_status status);

}  // namespace lasp
