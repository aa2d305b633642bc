#include "exchange/schedule.h"

#include <algorithm>

namespace lasp {
namespace {

ExchangeStep send(int32_t peer, int32_t slot, bool transition, Slices part) {
  return {
      .op = Op::kSend, .peer = peer, .slot = slot, .transition = transition, .begin = part.begin, .end = part.end};
}

ExchangeStep receive(int32_t peer, int32_t slot, bool transition, int32_t first, int32_t last, Slices part) {
  return {.op = Op::kReceive,
          .peer = peer,
          .slot = slot,
          .transition = transition,
          .first = first,
          .last = last,
          .begin = part.begin,
          .end = part.end};
}

ExchangeStep compose(int32_t slot, int32_t later, int32_t earlier, bool transition, Slices part) {
  return {.op = Op::kCompose,
          .slot = slot,
          .later = later,
          .earlier = earlier,
          .transition = transition,
          .begin = part.begin,
          .end = part.end};
}

// The last position's own map goes nowhere, and takes no slot.
StepList start_list(int32_t position, int32_t nranks) {
  StepList list;
  if (position + 1 < nranks) list.own = list.slots++;
  return list;
}

// LASP (2404.02882): receive the state of all earlier ranks, fold in the own one, send on. In several pieces the
// hops pipeline: ZeCO's all-scan (2507.01004). The transition stays at home: only states travel.
StepList make_ring(int32_t position, int32_t nranks, const AffineMap &map, int32_t pieces) {
  StepList list = start_list(position, nranks);
  if (position > 0) list.result = list.slots++;
  for (int32_t piece = 0; piece < pieces; ++piece) {
    const Slices part = map.piece(piece, pieces);
    if (position > 0) list.steps.push_back(receive(position - 1, list.result, false, 0, position - 1, part));
    if (list.own < 0) continue;
    if (position > 0) list.steps.push_back(compose(list.own, list.own, list.result, false, part));
    list.steps.push_back(send(position + 1, list.own, false, part));
  }
  return list;
}

// LASP-2 (2502.07563): every rank's map to all later ranks, which fold them in order.
StepList make_all_gather(int32_t position, int32_t nranks, const AffineMap &map) {
  StepList list = start_list(position, nranks);
  for (int32_t peer = position + 1; peer < nranks; ++peer)
    list.steps.push_back(send(peer, list.own, true, map.all()));
  for (int32_t peer = 0; peer < position; ++peer) {
    const int32_t arrived = list.slots++;
    list.steps.push_back(receive(peer, arrived, true, peer, peer, map.all()));
    if (peer > 0) list.steps.push_back(compose(arrived, arrived, list.result, false, map.all()));
    list.result = arrived;
  }
  return list;
}

// Hillis and Steele's scan: after the step of distance d a rank knows the composed map of itself and the 2d - 1
// ranks before it (`inclusive`), and of those alone (`list.result`).
StepList make_doubling(int32_t position, int32_t nranks, const AffineMap &map) {
  StepList list = start_list(position, nranks);
  int32_t inclusive = list.own;
  for (int32_t distance = 1; distance < nranks; distance *= 2) {
    const bool sends = position + distance < nranks, receives = position >= distance;
    if (sends) list.steps.push_back(send(position + distance, inclusive, true, map.all()));
    if (!receives) continue;
    const int32_t from = position - distance;
    const int32_t arrived = list.slots++;
    list.steps.push_back(receive(from, arrived, true, std::max(0, from - distance + 1), from, map.all()));
    const bool sends_again = distance * 2 < nranks && position + distance * 2 < nranks;
    if (sends_again) {  // a slot of its own: the last one may still be on its way out
      const int32_t next = list.slots++;
      list.steps.push_back(compose(next, inclusive, arrived, true, map.all()));
      inclusive = next;
    }
    if (list.result < 0) {
      list.result = arrived;
    } else {
      list.steps.push_back(compose(list.result, list.result, arrived, true, map.all()));
    }
  }
  return list;
}

}  // namespace

StepList make_steps(int32_t schedule, int32_t position, int32_t nranks, const AffineMap &map, int32_t pieces) {
  switch (schedule) {
    case LASP_SCHEDULE_ALL_GATHER: return make_all_gather(position, nranks, map);
    case LASP_SCHEDULE_ALL_SCAN: return make_ring(position, nranks, map, pieces);
    case LASP_SCHEDULE_DOUBLING: return make_doubling(position, nranks, map);
    default: return make_ring(position, nranks, map, 1);
  }
}

}  // namespace lasp
