// A bound on how long a test may take. One that waits in vain so fails by name and for a stated reason.
#pragma once

#include <gtest/gtest.h>

#include "watchdog.h"

namespace lasp_test {

class Deadline {
 public:
  // `what` completes "this did not end within 40 s: <what>".
  explicit Deadline(const char *what, std::chrono::seconds limit = std::chrono::seconds(40))
      : watchdog_(limit, [what, limit] {
          const testing::TestInfo *const test = testing::UnitTest::GetInstance()->current_test_info();
          std::printf("Failure\nthis did not end within %lld s: %s\n[  FAILED  ] %s.%s\n",
                      static_cast<long long>(limit.count() * kSlowness), what,
                      test != nullptr ? test->test_suite_name() : "?", test != nullptr ? test->name() : "?");
        }) {}

 private:
  Watchdog watchdog_;
};

}  // namespace lasp_test
