#include "base/status.h"

#include <cstdio>
#include <exception>
#include <new>

namespace lasp {
namespace {

constexpr char kUnknown[] = "unknown status";

}  // namespace

Error fail(lasp_status status, const char *format, ...) {
  char text[1024];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  return Error{status, text};
}

Error current_error() noexcept {
  try {
    try {
      throw;
    } catch (const Error &error) {
      return error;
    } catch (const std::bad_alloc &) {
      throw;
    } catch (const std::exception &error) {
      return {LASP_ERROR_INTERNAL, error.what()};
    } catch (...) {
      return {LASP_ERROR_INTERNAL, "an unknown exception"};
    }
  } catch (...) {  // no memory, in the call or for the sentence
    return {LASP_ERROR_OUT_OF_MEMORY, "out of memory"};
  }
}

const char *status_name(lasp_status status) {
  switch (status) {
    case LASP_OK: return "LASP_OK";
    case LASP_ERROR_INVALID_ARGUMENT: return "LASP_ERROR_INVALID_ARGUMENT";
    case LASP_ERROR_INVALID_HANDLE: return "LASP_ERROR_INVALID_HANDLE";
    case LASP_ERROR_INVALID_STRUCT: return "LASP_ERROR_INVALID_STRUCT";
    case LASP_ERROR_ABI_MISMATCH: return "LASP_ERROR_ABI_MISMATCH";
    case LASP_ERROR_BUFFER_TOO_SMALL: return "LASP_ERROR_BUFFER_TOO_SMALL";
    case LASP_ERROR_MISALIGNED: return "LASP_ERROR_MISALIGNED";
    case LASP_ERROR_IN_USE: return "LASP_ERROR_IN_USE";
    case LASP_ERROR_UNSUPPORTED: return "LASP_ERROR_UNSUPPORTED";
    case LASP_ERROR_NOT_BUILT: return "LASP_ERROR_NOT_BUILT";
    case LASP_ERROR_NO_DEVICE: return "LASP_ERROR_NO_DEVICE";
    case LASP_ERROR_LIBRARY_MISSING: return "LASP_ERROR_LIBRARY_MISSING";
    case LASP_ERROR_DEVICE_MEMORY: return "LASP_ERROR_DEVICE_MEMORY";
    case LASP_ERROR_DISAGREEMENT: return "LASP_ERROR_DISAGREEMENT";
    case LASP_ERROR_PEER_REFUSED: return "LASP_ERROR_PEER_REFUSED";
    case LASP_ERROR_INTERNAL: return "LASP_ERROR_INTERNAL";
    case LASP_ERROR_OUT_OF_MEMORY: return "LASP_ERROR_OUT_OF_MEMORY";
    case LASP_ERROR_DEVICE: return "LASP_ERROR_DEVICE";
    case LASP_ERROR_PEER_LOST: return "LASP_ERROR_PEER_LOST";
    case LASP_ERROR_ABORTED: return "LASP_ERROR_ABORTED";
    case LASP_ERROR_TRANSPORT: return "LASP_ERROR_TRANSPORT";
    case LASP_ERROR_VALUES: return "LASP_ERROR_VALUES";
    default: return kUnknown;
  }
}

std::string status_text(int64_t status) {
  const auto narrow = static_cast<lasp_status>(status);
  const char *name = narrow == status ? status_name(narrow) : kUnknown;
  return name != kUnknown ? name : "status " + std::to_string(status);
}

}  // namespace lasp
