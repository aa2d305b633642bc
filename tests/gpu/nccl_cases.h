// What every NCCL suite holds a run to, and the cases it runs where the whole table would be too much.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "support/measure.h"

namespace lasp_test {

inline constexpr const char *kChosen[] = {
    "none_batch",           "head_packed_ragged", "scalar_long",       "channel_bfloat16",
    "bidirectional_ragged", "head_sparse_ranks",  "none_wide_packed",  "head_wide_length_300",
    "scalar_wide_grouped",  "scalar_broadcast",   "delta_scalar_long", "delta_channel_packed_ragged"};

inline void expect_right(const Case &c, const Expected &expected, const Outputs &out, const std::string &where) {
  EXPECT_EQ(out.complaints, "") << where;
  if (!out.complaints.empty()) return;
  EXPECT_EQ(compare(c, expected, out), "") << where;
}

}  // namespace lasp_test
