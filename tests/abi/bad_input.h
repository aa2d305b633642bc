// The table of wrong calls: a row is one call that departs from a valid one by one mistake, the status it must
// return and a pattern that the sentence must match, which names the argument. bad_input_table.cpp runs the rows.
#pragma once

#include <gtest/gtest.h>

#include <ostream>

#include "rig.h"

struct WrongCall {
  const char *name;
  lasp_status status;
  const char *sentence;  // regular expression (ECMAScript)
  lasp_status (*call)(Rig &);
  bool delta = false;   // of a rig whose plan has the delta write
  bool packed = false;  // of one whose plan is packed
};
inline std::ostream &operator<<(std::ostream &out, const WrongCall &row) { return out << row.name; }

class WrongCalls : public testing::TestWithParam<WrongCall> {};
inline std::string name_of_row(const testing::TestParamInfo<WrongCall> &info) { return info.param.name; }

constexpr lasp_status kInvalid = LASP_ERROR_INVALID_ARGUMENT;
constexpr lasp_status kUnsupported = LASP_ERROR_UNSUPPORTED;
