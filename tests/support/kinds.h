// What tests go through: the values of an enumeration of lasp.h, each list once.
#pragma once

#include <lasp/lasp.h>

#include <cstdint>

namespace lasp_test {

// Without AUTO, and without RELAY, which has no exchange and does not serve every plan (serves() of
// group_params.h). tests/unit/core/kinds_test.cpp compares both lists with the library's.
inline constexpr int32_t kSchedules[] = {LASP_SCHEDULE_RING, LASP_SCHEDULE_ALL_GATHER, LASP_SCHEDULE_ALL_SCAN,
                                         LASP_SCHEDULE_DOUBLING, LASP_SCHEDULE_HEAD_SCATTER};
inline constexpr int32_t kSchedulesAndRelay[] = {LASP_SCHEDULE_RING,         LASP_SCHEDULE_ALL_GATHER,
                                                 LASP_SCHEDULE_ALL_SCAN,     LASP_SCHEDULE_DOUBLING,
                                                 LASP_SCHEDULE_HEAD_SCATTER, LASP_SCHEDULE_RELAY};
inline constexpr int32_t kDecays[] = {LASP_DECAY_NONE, LASP_DECAY_HEAD, LASP_DECAY_SCALAR, LASP_DECAY_CHANNEL};

}  // namespace lasp_test
