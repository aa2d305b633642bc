#include "engine/trace_path.h"

#include <unistd.h>

#include <map>
#include <mutex>

#include "base/at_fork.h"
#include "base/status.h"

namespace lasp {
namespace {

std::mutex mutex;                                 // of what follows
std::map<std::string, int32_t> *names = nullptr;  // how many contexts had this name; never destroyed

void keep_names() {}
using Forks = AtFork<mutex, keep_names>;

int32_t count_name(const std::string &name) {
  Forks::install();
  const std::lock_guard lock(mutex);
  if (names == nullptr) names = new std::map<std::string, int32_t>;
  return ++(*names)[name];
}

}  // namespace

std::string trace_path(const char *pattern, int32_t rank, int32_t nranks) {
  std::string path;
  bool own = nranks == 1;
  for (const char *at = pattern; *at != 0; ++at) {
    if (*at != '%') {
      path += *at;
      continue;
    }
    switch (*++at) {
      case 'r': path += std::to_string(rank), own = true; break;
      case 'p': path += std::to_string(getpid()), own = true; break;
      case '%': path += '%'; break;
      default:
        throw fail(LASP_ERROR_INVALID_ARGUMENT,
                   "LASP_TRACE = %s: %%r is the rank, %%p the process, %%%% a percent sign, and nothing else",
                   pattern);
    }
  }
  if (!own)
    throw fail(LASP_ERROR_INVALID_ARGUMENT,
               "LASP_TRACE = %s: the %d ranks of the group would write one file; put %%r where the rank goes",
               pattern, nranks);
  const int32_t number = count_name(path);
  if (number == 1) return path;
  const size_t slash = path.rfind('/'), dot = path.rfind('.');
  const bool extension = dot != std::string::npos && (slash == std::string::npos || dot > slash + 1);
  return path.insert(extension ? dot : path.size(), "-" + std::to_string(number));
}

}  // namespace lasp
