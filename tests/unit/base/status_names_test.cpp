// Every status of the header has a name in status.cpp: the list is made from the header.
#include <gtest/gtest.h>
#include <lasp/lasp.h>

#include <string>

namespace {

TEST(StatusNames, EachIsThatOfTheHeader) {
  int statuses = 0;
  const auto check = [&](const std::string &group, lasp_status status, const char *name) {
    if (group != "lasp_status_values" || status == LASP_STATUS_FORCE_INT32) return;
    ++statuses;
    EXPECT_STREQ(lasp_status_name(status), name);
  };
#define LAYOUT_CONSTANT(name, group) check(#group, static_cast<lasp_status>(name), #name);
#define LAYOUT_HANDLE(...)
#define LAYOUT_ALIAS(...)
#define LAYOUT_STRUCT(...)
#define LAYOUT_FIELD(...)
#define LAYOUT_FUNCTION(...)
#define LAYOUT_PARAMETER(...)
#include "bindings/layout/layout_list.inc"
  EXPECT_GE(statuses, 20);
}

}  // namespace
