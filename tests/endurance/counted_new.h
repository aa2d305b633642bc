// Every allocation by operator new in this program, liblasp's own included: how many blocks live, and a switch that
// makes the n-th one inside a library call fail.
#pragma once

#include <cstdint>

namespace allocation {

// Blocks that are allocated and not yet freed, by all threads.
int64_t live_blocks();

// This thread's n-th allocation inside library calls from now on fails (n = 1 is the next one), and every one
// after it too when `for_good`. n = 0: none.
void fail_at(int64_t n, bool for_good = false);
// How many have failed since then, by std::bad_alloc; and how many that asked for a null pointer instead, as
// std::stable_sort does, which can go on without.
int64_t failed();
int64_t failed_quietly();

// Around a call into the library: only allocations inside count for fail_at.
class InLibrary {
 public:
  InLibrary();
  ~InLibrary();
  InLibrary(const InLibrary &) = delete;
  InLibrary &operator=(const InLibrary &) = delete;
};

}  // namespace allocation
