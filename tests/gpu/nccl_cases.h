// What every NCCL suite holds a run to, and the cases it runs where the whole table would be too much.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "support/measure.h"

namespace lasp_test {

inline constexpr const char *kChosen[] = {"none_batch",       "head_packed_ragged",   "scalar_long",
                                          "channel_bfloat16", "bidirectional_ragged", "head_sparse_ranks",
                                          "none_wide_packed", "head_wide_length_300", "scalar_wide_grouped",
                                          "scalar_broadcast"};

inline void expect_right(const Case &c, const Expected &expected, const Outputs &out, const std::string &where) {
  if (c.delta) {  // a GPU refuses the delta write, on every rank
    for (const RankResult &rank : out.ranks) EXPECT_EQ(rank.plan_status, LASP_ERROR_UNSUPPORTED) << where;
    return;
  }
  EXPECT_EQ(out.complaints, "") << where;
  if (!out.complaints.empty()) return;
  EXPECT_EQ(compare(c, expected, out), "") << where;
}

}  // namespace lasp_test
