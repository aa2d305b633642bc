// The parameters of a conformance test: which problem, on how many ranks of which transport, by which schedule.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "support/case.h"
#include "support/group.h"
#include "support/guarded_buffer.h"
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

// Whether a plan of this case may have the schedule.
inline bool serves(int32_t schedule, const Case &c) {
  if (schedule != LASP_SCHEDULE_RELAY) return true;
  return c.cu_seqlens.empty() && c.segment == 0 && c.mask == LASP_MASK_CAUSAL && c.ownership == LASP_OWN_CONTIGUOUS;
}

// Where a case does not take all of `count` ways, cases take turns; two choices of a case are apart by `what`.
inline size_t turn(const Case &c, size_t count, const char *what = "") {
  return std::hash<std::string>()(c.name + what) % count;
}

// Whether a run leaves it out: one case of three is enough for schedules that know neither types nor layouts. On a
// CPU relay's passes are those of a group of one, which have every case.
inline bool left_out(int32_t schedule, const Case &c) {
  const bool some =
      (schedule == LASP_SCHEDULE_HEAD_SCATTER && quick_run()) || (schedule == LASP_SCHEDULE_RELAY && !on_cuda());
  return !serves(schedule, c) || (some && turn(c, 3) != 0);
}

inline std::vector<int32_t> all_schedules() {
  std::vector<int32_t> all = {LASP_SCHEDULE_AUTO};
  all.insert(all.end(), std::begin(kSchedulesAndRelay), std::end(kSchedulesAndRelay));
  return all;
}

// The same of a group. On a CPU all schedules of a rank alone are one, the automatic one is another one of the
// list, and a case for tensor cores (aligned) is one more width: groups of 1 and 3 have it.
inline bool left_out(int32_t schedule, const Case &c, const GroupSize &group) {
  if (left_out(schedule, c) || on_cuda() || whole_run()) return left_out(schedule, c);
  const bool automatic = schedule == LASP_SCHEDULE_AUTO;
  const size_t of_alone = turn(c, std::size(kSchedules));
  if (group.nranks == 1)
    return schedule != kSchedules[of_alone] && !(automatic && group.transport == Transport::self);
  if (c.aligned && group.nranks != 3) return true;
  const std::vector<GroupSize> groups = thread_groups();
  const size_t first = quick_run() ? 1 : 2;  // of several ranks
  return automatic && !c.aligned && group.nranks != groups[first + turn(c, groups.size() - first)].nranks;
}

inline std::vector<int32_t> schedules_of(const Case &c) {
  std::vector<int32_t> some = all_schedules();
  std::erase_if(some, [&](int32_t schedule) { return !serves(schedule, c); });
  return some;
}

inline std::string group_name(const GroupSize &group, int32_t schedule) {
  const std::string transport = group.transport == Transport::self ? "self" : "w" + std::to_string(group.nranks);
  return transport + "_" + schedule_name(schedule);
}

}  // namespace lasp_test
