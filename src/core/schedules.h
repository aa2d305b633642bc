// The schedules of the exchange, each named once. The steps of one are in exchange/schedule.cpp, its predicted time
// in exchange/cost_model.cpp. Relay has no such steps: engine/relay.h.
#pragma once

#include <lasp/lasp.h>

#include <array>
#include <cstdint>

namespace lasp {

struct ScheduleEntry {
  int32_t value;           // LASP_SCHEDULE_*
  const char *name;        // "LASP_SCHEDULE_RING"
  const char *short_name;  // "ring"
  bool serial;             // applies the ranks' maps one after the other, so that a segment's sums have one order
  bool waits = false;  // a rank's work waits for what enters (engine/relay.h): the model of messages says little
};

// In order of preference where the model sees no difference: fewest bytes and least memory first.
inline constexpr std::array kSchedules = {
    ScheduleEntry{LASP_SCHEDULE_RING, "LASP_SCHEDULE_RING", "ring", true},
    ScheduleEntry{LASP_SCHEDULE_ALL_SCAN, "LASP_SCHEDULE_ALL_SCAN", "all-scan", true},
    ScheduleEntry{LASP_SCHEDULE_DOUBLING, "LASP_SCHEDULE_DOUBLING", "doubling", false},
    ScheduleEntry{LASP_SCHEDULE_ALL_GATHER, "LASP_SCHEDULE_ALL_GATHER", "all-gather", false},
    ScheduleEntry{LASP_SCHEDULE_HEAD_SCATTER, "LASP_SCHEDULE_HEAD_SCATTER", "head-scatter", false},
    ScheduleEntry{LASP_SCHEDULE_RELAY, "LASP_SCHEDULE_RELAY", "relay", false, true}};
static_assert(kSchedules.size() < std::size(decltype(lasp_plan_info::predicted_us){}),
              "indexed by LASP_SCHEDULE_*");

constexpr const ScheduleEntry *find_schedule(int64_t value) {
  for (const ScheduleEntry &schedule : kSchedules)
    if (schedule.value == value) return &schedule;
  return nullptr;
}

}  // namespace lasp
