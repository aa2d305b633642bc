// The parameters of a conformance test: which problem, on how many ranks of which transport, by which schedule.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "support/case.h"
#include "support/group.h"
#include "support/kinds.h"

namespace lasp_test {

struct GroupSize {
  Transport transport;
  int32_t nranks;
};
inline std::ostream &operator<<(std::ostream &out, const GroupSize &group) {
  return out << (group.transport == Transport::self ? "self " : "threads ") << group.nranks;
}

// Every group the thread suite runs; a group of one over both transports that have it.
inline std::vector<GroupSize> thread_groups() {
  // Five ranks are the fewest on which doubling composes the maps of several ranks and is not a power of two.
  if (quick_run()) return {{Transport::self, 1}, {Transport::threads, 3}, {Transport::threads, 5}};
  return {{Transport::self, 1},    {Transport::threads, 1}, {Transport::threads, 2},
          {Transport::threads, 3}, {Transport::threads, 4}, {Transport::threads, 8}};
}

inline std::vector<int32_t> all_schedules() {
  std::vector<int32_t> all = {LASP_SCHEDULE_AUTO};
  all.insert(all.end(), std::begin(kSchedules), std::end(kSchedules));
  return all;
}

inline std::string group_name(const GroupSize &group, int32_t schedule) {
  const std::string transport = group.transport == Transport::self ? "self" : "w" + std::to_string(group.nranks);
  return transport + "_" + schedule_name(schedule);
}

}  // namespace lasp_test
