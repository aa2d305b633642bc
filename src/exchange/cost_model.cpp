#include "exchange/cost_model.h"

#include <lasp/lasp.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "core/schedules.h"

namespace lasp {
namespace {

// Of head-scatter: an owner folds the maps one after the other, which the formula leaves out.
constexpr int32_t kMostFolded = 16;

}  // namespace

double predict_exchange_us(int32_t schedule, int32_t nranks, const Payload &payload, int32_t pieces,
                           const Link &link) {
  if (nranks <= 1) return 0;
  const ScheduleEntry *const entry = find_schedule(schedule);
  const double bytes = entry == nullptr || entry->serial ? payload.state : payload.map;
  const double transfer = bytes / (link.bandwidth_gbs * 1e3);  // 1 GB/s moves 1e3 bytes a microsecond
  switch (schedule) {
    case LASP_SCHEDULE_RING: return (nranks - 1) * (link.latency_us + transfer);
    case LASP_SCHEDULE_ALL_GATHER: return link.latency_us + (nranks - 1) * transfer;
    case LASP_SCHEDULE_ALL_SCAN: return (nranks - 2.0 + pieces) * (link.latency_us + transfer / pieces);
    case LASP_SCHEDULE_DOUBLING:
      return std::bit_width(static_cast<uint32_t>(nranks - 1)) * (link.latency_us + transfer);
    case LASP_SCHEDULE_HEAD_SCATTER: {  // an owner takes maps of its share from all others, and sends them states
      const double both = (payload.state + payload.map) / (link.bandwidth_gbs * 1e3);
      const double owners =
          payload.heads > 0 ? std::min<double>(nranks, static_cast<double>(payload.heads)) : nranks;
      return 2 * link.latency_us + (nranks - 1) * both / owners;
    }
    default:
      return predict_exchange_us(best_schedule(nranks, payload, pieces, link), nranks, payload, pieces, link);
  }
}

int32_t best_pieces(int32_t nranks, double payload_bytes, int32_t most, const Link &link) {
  if (nranks <= 2) return 1;  // nothing to pipeline
  // d/dn of (W-2+n)(a + x/n) is zero at n = sqrt((W-2) x / a).
  const double transfer = payload_bytes / (link.bandwidth_gbs * 1e3);
  const double best = std::sqrt((nranks - 2) * transfer / link.latency_us);
  return static_cast<int32_t>(std::clamp(std::nearbyint(best), 1.0, static_cast<double>(std::max(most, 1))));
}

int32_t best_schedule(int32_t nranks, const Payload &payload, int32_t pieces, const Link &link,
                      const Among &among) {
  int32_t best = kSchedules.front().value;
  for (const ScheduleEntry &each : kSchedules) {
    if (among.serial && !each.serial) continue;
    const bool folds = among.head_scatter && nranks <= kMostFolded;
    if (each.value == LASP_SCHEDULE_HEAD_SCATTER && !folds) continue;
    if (predict_exchange_us(each.value, nranks, payload, pieces, link) <
        predict_exchange_us(best, nranks, payload, pieces, link))
      best = each.value;
  }
  return best;
}

}  // namespace lasp
