// What lasp_last_error says when a sentence is longer than there is room for: its beginning.
#include <gtest/gtest.h>
#include <lasp/lasp.h>

#include <string>

#include "base/status.h"
#include "guarded.h"

namespace lasp {
namespace {

constexpr size_t kMost = 1023;  // and a zero

TEST(Sentences, AreCutAtTheEndOfTheirRoom) {
  for (const size_t length : {size_t{0}, size_t{1}, kMost - 1, kMost, kMost + 1, 3 * kMost}) {
    const std::string text(length, 'x');
    set_last_error(text.c_str());
    EXPECT_EQ(lasp_last_error(), text.substr(0, kMost)) << length;
    EXPECT_EQ(fail(LASP_ERROR_INTERNAL, "%s", text.c_str()).sentence, text.substr(0, kMost)) << length;
  }
}

TEST(Sentences, ThrowAwayWhatAnEarlierOneLeft) {
  set_last_error(std::string(kMost, 'x').c_str());
  set_last_error("short");
  EXPECT_STREQ(lasp_last_error(), "short");
}

}  // namespace
}  // namespace lasp
