// The one place where exceptions become statuses. Every exported function that can fail is one call of guarded().
#pragma once

#include <lasp/lasp.h>

#include "base/status.h"

namespace lasp {

// This thread's last sentence; cut to fit.
void set_last_error(const char *sentence) noexcept;

template <class Function>
lasp_status guarded(Function &&function) noexcept {
  try {
    function();
    return LASP_OK;
  } catch (...) {
    const Error error = current_error();
    set_last_error(error.sentence.c_str());
    return error.status;
  }
}

// Of a group that a caller's own transport makes, or none.
inline constexpr int32_t kMaxRanks = 65536;
inline void require_place(int32_t rank, int32_t nranks) {
  if (nranks < 1 || nranks > kMaxRanks)
    throw fail(LASP_ERROR_INVALID_ARGUMENT, "nranks = %d: must be 1 to %d", nranks, kMaxRanks);
  if (rank < 0 || rank >= nranks)
    throw fail(LASP_ERROR_INVALID_ARGUMENT, "rank = %d: must be 0 to nranks - 1 = %d", rank, nranks - 1);
}

template <class T>
T &require_pointer(T *pointer, const char *name) {
  if (pointer == nullptr) throw fail(LASP_ERROR_INVALID_ARGUMENT, "%s is null", name);
  return *pointer;
}

}  // namespace lasp
