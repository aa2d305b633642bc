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

// The exception that is being handled, whatever it is; to be called in a catch block. Needs no memory for
// LASP_ERROR_OUT_OF_MEMORY.
Error current_error() noexcept;

// "LASP_ERROR_PEER_LOST"; "unknown status" for others. Static.
const char *status_name(lasp_status status);
// The same, and "status 12345" for others.
std::string status_text(int64_t status);

}  // namespace lasp
