#include "exchange/cost_model.h"

#include <lasp/lasp.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "core/schedules.h"

namespace lasp {
namespace {

// Of head-scatter: an owner folds the maps one after the other, where nobody else has work.
constexpr int32_t kMostFolded = 16;

double moving_us(double bytes, double gbs) { return bytes / (gbs * 1e3); }  // 1 GB/s moves 1e3 bytes a microsecond

// Composing one map onto another, where both have `part` of the heads or columns.
class Fold {
 public:
  Fold(const Payload &payload, const Link &link) : payload_(payload), link_(link) {}

  double state_us(double part = 1) const { return launch_us() + part * work_us(payload_.state); }
  // With the transition of the two together. Where it is not dense the same launch makes it.
  double map_us() const {
    if (payload_.dense_rows == 0) return state_us();
    return state_us() + launch_us() + work_us(payload_.map - payload_.state);
  }
  // So many maps one after the other, in one round. Where transitions are not dense a launch takes them all.
  double states_us(int32_t maps) const {
    if (maps <= 0) return 0;
    return (payload_.dense_rows > 0 ? maps : 1) * launch_us() + maps * work_us(payload_.state);
  }

 private:
  double launch_us() const { return payload_.dense_rows > 0 ? link_.dense_us : link_.fold_us; }
  double work_us(double bytes) const {
    if (payload_.dense_rows == 0) return link_.fold_gbs > 0 ? moving_us(bytes, link_.fold_gbs) : 0;
    const double flop = bytes / sizeof(float) * 2 * static_cast<double>(payload_.dense_rows);
    return link_.dense_tflops > 0 ? flop / (link_.dense_tflops * 1e6) : 0;
  }

  const Payload &payload_;
  const Link &link_;
};

// Of two ranks one sends and the other receives.
double round_us(int32_t nranks, const Link &link) { return nranks > 2 ? link.round_us : 0; }

}  // namespace

double predict_exchange_us(int32_t schedule, int32_t nranks, const Payload &payload, int32_t pieces,
                           const Link &link) {
  if (nranks <= 1) return 0;
  const double latency = link.latency_us, both_ways = round_us(nranks, link);
  const double state = moving_us(payload.state, link.bandwidth_gbs),
               map = moving_us(payload.map, link.bandwidth_gbs);
  const Fold fold(payload, link);
  switch (schedule) {
    case LASP_SCHEDULE_RELAY: return (nranks - 1) * (latency + state);
    case LASP_SCHEDULE_RING: return (nranks - 1) * (latency + state) + (nranks - 2) * fold.state_us();
    case LASP_SCHEDULE_ALL_GATHER: return latency + (nranks - 1) * map + both_ways + fold.states_us(nranks - 2);
    case LASP_SCHEDULE_ALL_SCAN: {
      const double composed = nranks > 2 ? (nranks - 3.0 + pieces) * fold.state_us(1.0 / pieces) : 0;
      return (nranks - 2.0 + pieces) * (latency + state / pieces) + (pieces - 1) * both_ways + composed;
    }
    case LASP_SCHEDULE_DOUBLING: {
      const int rounds = std::bit_width(static_cast<uint32_t>(nranks - 1));
      return rounds * (latency + map + both_ways) + (rounds - 1) * (fold.state_us() + fold.map_us());
    }
    case LASP_SCHEDULE_HEAD_SCATTER: {  // an owner takes maps of its share from all others, and sends them states
      const double owners =
          payload.heads > 0 ? std::min<double>(nranks, static_cast<double>(payload.heads)) : nranks;
      return 2 * (latency + both_ways) + (nranks - 1) * (state + map) / owners +
             (nranks - 2) * fold.state_us(1 / owners);
    }
    default:
      return predict_exchange_us(best_schedule(nranks, payload, pieces, link), nranks, payload, pieces, link);
  }
}

int32_t best_pieces(int32_t nranks, const Payload &payload, int32_t most, const Link &link) {
  if (nranks <= 2) return 1;  // nothing to pipeline
  // What every piece costs is paid n times, and what pieces share goes with 1/n: (W-2+n) messages, (W-3+n) folds.
  const Fold fold(payload, link);
  const double each = fold.state_us(0), work = fold.state_us() - each;
  const double shared = (nranks - 2.0) * moving_us(payload.state, link.bandwidth_gbs) + (nranks - 3.0) * work;
  const double best = std::sqrt(shared / (link.latency_us + link.round_us + each));
  return static_cast<int32_t>(std::clamp(std::nearbyint(best), 1.0, static_cast<double>(std::max(most, 1))));
}

int32_t best_schedule(int32_t nranks, const Payload &payload, int32_t pieces, const Link &link,
                      const Among &among) {
  int32_t best = kSchedules.front().value;
  for (const ScheduleEntry &each : kSchedules) {
    if (each.waits) continue;
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
