// How things go wrong in lasp-bench, and the one way its calls of the library are checked.
#pragma once

#include <lasp/lasp.h>

#include <stdexcept>
#include <string>

namespace bench {

// A word on the command line: exit status 2.
struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A call failed on this rank: the group is of no more use.
struct Failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// All ranks were refused one plan, each knows it, and the group lives on.
struct Refused : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Another rank failed; its own sentence says why.
struct PeerFailed : std::runtime_error {
  PeerFailed() : std::runtime_error("another rank failed") {}
};

inline std::string sentence(const char *call, lasp_status status) {
  return std::string(call) + " returned " + lasp_status_name(status) + ": " + lasp_last_error();
}

inline void check(lasp_status status, const char *call) {
  if (status != LASP_OK) throw Failure(sentence(call, status));
}

}  // namespace bench
