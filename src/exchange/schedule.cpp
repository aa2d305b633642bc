#include "exchange/schedule.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace lasp {
namespace {

ExchangeStep send(int32_t peer, int32_t slot, bool transition, Slices part, int32_t round) {
  return {.op = Op::kSend,
          .peer = peer,
          .slot = slot,
          .transition = transition,
          .begin = part.begin,
          .end = part.end,
          .round = round};
}

ExchangeStep receive(int32_t peer, int32_t slot, bool transition, int32_t first, int32_t last, Slices part,
                     int32_t round) {
  return {.op = Op::kReceive,
          .peer = peer,
          .slot = slot,
          .transition = transition,
          .first = first,
          .last = last,
          .begin = part.begin,
          .end = part.end,
          .round = round};
}

ExchangeStep compose(int32_t slot, int32_t later, int32_t earlier, bool transition, Slices part, int32_t round) {
  return {.op = Op::kCompose,
          .slot = slot,
          .later = later,
          .earlier = earlier,
          .transition = transition,
          .begin = part.begin,
          .end = part.end,
          .round = round};
}

// The steps of one position as they are made.
struct Making {
  std::vector<ExchangeStep> steps;
  int32_t slots = 0, own = -1, result = -1;

  // The last position's own map goes nowhere, and takes no slot.
  Making(int32_t position, int32_t positions) {
    if (position + 1 < positions) own = slots++;
  }
};

// LASP (2404.02882): receive the state of all earlier ranks, fold in the own one, send on. In several pieces the
// hops pipeline: ZeCO's all-scan (2507.01004). The transition stays at home: only states travel.
Making make_ring(int32_t position, int32_t positions, const AffineMap &map, int32_t pieces) {
  Making list(position, positions);
  if (position > 0) list.result = list.slots++;
  for (int32_t piece = 0; piece < pieces; ++piece) {
    const Slices part = map.piece(piece, pieces);
    const int32_t comes = position - 1 + piece, goes = position + piece;
    if (position > 0) list.steps.push_back(receive(position - 1, list.result, false, 0, position - 1, part, comes));
    if (list.own < 0) continue;
    if (position > 0) list.steps.push_back(compose(list.own, list.own, list.result, false, part, comes));
    list.steps.push_back(send(position + 1, list.own, false, part, goes));
  }
  return list;
}

// LASP-2 (2502.07563): every rank's map to all later ranks, which fold them in order.
Making make_all_gather(int32_t position, int32_t positions, const AffineMap &map) {
  Making list(position, positions);
  for (int32_t peer = position + 1; peer < positions; ++peer)
    list.steps.push_back(send(peer, list.own, true, map.all(), 0));
  for (int32_t peer = 0; peer < position; ++peer) {
    const int32_t arrived = list.slots++;
    list.steps.push_back(receive(peer, arrived, true, peer, peer, map.all(), 0));
    if (peer > 0) list.steps.push_back(compose(arrived, arrived, list.result, false, map.all(), 0));
    list.result = arrived;
  }
  return list;
}

// Hillis and Steele's scan: after the step of distance d a rank knows the composed map of itself and the 2d - 1
// ranks before it (`inclusive`), and of those alone (`list.result`).
Making make_doubling(int32_t position, int32_t positions, const AffineMap &map) {
  Making list(position, positions);
  int32_t inclusive = list.own;
  for (int32_t distance = 1, round = 0; distance < positions; distance *= 2, ++round) {
    const bool sends = position + distance < positions, receives = position >= distance;
    if (sends) list.steps.push_back(send(position + distance, inclusive, true, map.all(), round));
    if (!receives) continue;
    const int32_t from = position - distance;
    const int32_t arrived = list.slots++;
    list.steps.push_back(receive(from, arrived, true, std::max(0, from - distance + 1), from, map.all(), round));
    const bool sends_again = distance * 2 < positions && position + distance * 2 < positions;
    if (sends_again) {  // a slot of its own: the last one may still be on its way out
      const int32_t next = list.slots++;
      list.steps.push_back(compose(next, inclusive, arrived, true, map.all(), round));
      inclusive = next;
    }
    if (list.result < 0) {
      list.result = arrived;
    } else {
      list.steps.push_back(compose(list.result, list.result, arrived, true, map.all(), round));
    }
  }
  return list;
}

Making make_list(int32_t schedule, int32_t position, int32_t positions, const AffineMap &map, int32_t pieces) {
  switch (schedule) {
    case LASP_SCHEDULE_ALL_GATHER: return make_all_gather(position, positions, map);
    case LASP_SCHEDULE_ALL_SCAN: return make_ring(position, positions, map, pieces);
    case LASP_SCHEDULE_DOUBLING: return make_doubling(position, positions, map);
    default: return make_ring(position, positions, map, 1);
  }
}

int32_t shifted(int32_t slot, int32_t by) { return slot < 0 ? slot : slot + by; }

bool is_message(const ExchangeStep &step) { return step.op == Op::kSend || step.op == Op::kReceive; }

// In each round what others may wait for comes first.
int rank_of(const ExchangeStep &step) { return step.op == Op::kSend ? 0 : step.op == Op::kCopy ? 1 : 2; }

// A receive whose send is in the same list, of these positions, becomes a copy; the send goes.
void copy_between(StepList &list, const std::vector<int32_t> &positions) {
  std::vector<ExchangeStep> &steps = list.steps;
  const auto is_own = [&](const ExchangeStep &step) {
    return is_message(step) && std::find(positions.begin(), positions.end(), step.peer) != positions.end();
  };
  std::vector<ExchangeStep> kept;
  for (ExchangeStep step : steps) {
    if (!is_own(step)) {
      kept.push_back(step);
    } else if (step.op == Op::kReceive) {
      const auto sent = std::find_if(steps.begin(), steps.end(), [&](const ExchangeStep &other) {
        return other.op == Op::kSend && other.at == step.peer && other.peer == step.at &&
               other.round == step.round && other.begin == step.begin;
      });
      step.op = Op::kCopy;
      step.earlier = sent->slot;
      kept.push_back(step);
    }
  }
  steps = std::move(kept);
}

}  // namespace

StepList make_steps(int32_t schedule, int32_t position, int32_t positions, const AffineMap &map, int32_t pieces) {
  Making made = make_list(schedule, position, positions, map, pieces);
  for (ExchangeStep &step : made.steps) step.at = position;
  return {std::move(made.steps), made.slots, {made.own}, {made.result}};
}

StepList join_lists(std::span<const StepList> lists) {
  if (lists.size() == 1) return lists[0];
  StepList all;
  std::vector<int32_t> positions;
  for (const StepList &list : lists) {
    if (!list.steps.empty()) positions.push_back(list.steps[0].at);
    for (ExchangeStep step : list.steps) {
      for (int32_t ExchangeStep::*slot : {&ExchangeStep::slot, &ExchangeStep::later, &ExchangeStep::earlier})
        step.*slot = shifted(step.*slot, all.slots);
      all.steps.push_back(step);
    }
    all.own.push_back(shifted(list.own[0], all.slots));
    all.result.push_back(shifted(list.result[0], all.slots));
    all.slots += list.slots;
  }
  copy_between(all, positions);
  std::stable_sort(all.steps.begin(), all.steps.end(), [](const ExchangeStep &a, const ExchangeStep &b) {
    return a.round != b.round ? a.round < b.round : rank_of(a) < rank_of(b);
  });
  return all;
}

std::vector<size_t> order_of_receives(const StepList &list) {
  std::vector<size_t> order;
  for (size_t i = 0; i < list.steps.size(); ++i)
    if (list.steps[i].op == Op::kReceive) order.push_back(i);
  const auto key = [&](size_t i) {
    const ExchangeStep &step = list.steps[i];
    return std::tuple(step.round, step.peer, step.at);
  };
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return key(a) < key(b); });
  return order;
}

}  // namespace lasp
