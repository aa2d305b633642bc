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

// A transition without its state.
ExchangeStep of_transition(ExchangeStep step) {
  step.transition = step.alone = true;
  return step;
}

// The steps of one position as they are made.
struct Making {
  std::vector<ExchangeStep> steps;
  int32_t slots = 0, own = -1, result = -1;
  std::vector<Slices> parts = {};

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

// Each position folds the maps of its share of heads for all: the maps go there and the states that enter come
// back. Nothing comes before the first position, so nobody asks for its transition.
class HeadScatter {
 public:
  HeadScatter(int32_t position, int32_t positions, const AffineMap &map)
      : position_(position),
        positions_(positions),
        map_(map),
        mine_(share(position)),
        list_(position, positions),
        entering_(static_cast<size_t>(positions), -1) {
    if (list_.own >= 0) list_.parts.push_back(map.all());
  }

  Making make() {
    scatter();
    if (mine_.begin < mine_.end) fold();
    hand_back();
    return std::move(list_);
  }

 private:
  Slices share(int32_t owner) const { return map_.piece_of_heads(owner, positions_); }
  int32_t add_slot(Slices part) {
    list_.parts.push_back(part);
    return list_.slots++;
  }
  void add(const ExchangeStep &step) { list_.steps.push_back(step); }
  // Of the map of `from`, whether its transition is a message of its own.
  bool sends_transition(int32_t from) const { return from > 0 && !map_.is_known(); }

  void scatter() {
    for (int32_t owner = 0; list_.own >= 0 && owner < positions_; ++owner) {
      const Slices part = share(owner);
      if (owner == position_ || part.begin == part.end) continue;
      add(send(owner, list_.own, false, part, 0));
      if (sends_transition(position_)) add(of_transition(send(owner, list_.own, true, part, 0)));
    }
  }

  void fold() {
    for (int32_t from = 0, earlier = -1; from + 1 < positions_; ++from) {
      const int32_t slot = from == position_ ? list_.own : add_slot(mine_);
      if (from != position_) {
        add(receive(from, slot, from > 0 && map_.is_known(), from, from, mine_, 0));
        if (sends_transition(from)) add(of_transition(receive(from, slot, true, from, from, mine_, 0)));
      }
      if (from > 0) add(compose(slot, slot, earlier, false, mine_, 0));
      entering_[static_cast<size_t>(from) + 1] = earlier = slot;
    }
  }

  void hand_back() {
    const bool owns = mine_.begin < mine_.end;
    for (int32_t to = 1; owns && to < positions_; ++to)
      if (to != position_) add(send(to, entering_[static_cast<size_t>(to)], false, mine_, 1));
    if (position_ == 0) return;
    list_.result = add_slot(map_.all());
    for (int32_t owner = 0; owner < positions_; ++owner) {
      const Slices part = share(owner);
      if (owner == position_ || part.begin == part.end) continue;
      add(receive(owner, list_.result, false, 0, position_ - 1, part, 1));
    }
    if (!owns) return;
    ExchangeStep own = receive(position_, list_.result, false, 0, position_ - 1, mine_, 1);
    own.op = Op::kCopy;
    own.earlier = entering_[static_cast<size_t>(position_)];
    const auto begun = std::find_if(list_.steps.begin(), list_.steps.end(), [](const ExchangeStep &step) {
      return step.round == 1 && step.op == Op::kReceive;
    });
    list_.steps.insert(begun, own);
  }

  const int32_t position_, positions_;
  const AffineMap &map_;
  const Slices mine_;
  Making list_;
  std::vector<int32_t> entering_;  // by position: the slot of the state that enters it
};

Making make_list(int32_t schedule, int32_t position, int32_t positions, const AffineMap &map, int32_t pieces) {
  switch (schedule) {
    case LASP_SCHEDULE_ALL_GATHER: return make_all_gather(position, positions, map);
    case LASP_SCHEDULE_ALL_SCAN: return make_ring(position, positions, map, pieces);
    case LASP_SCHEDULE_DOUBLING: return make_doubling(position, positions, map);
    case LASP_SCHEDULE_HEAD_SCATTER: return HeadScatter(position, positions, map).make();
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
               other.round == step.round && other.begin == step.begin && other.alone == step.alone;
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
  return {std::move(made.steps), made.slots, {made.own}, {made.result}, std::move(made.parts)};
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
    all.parts.insert(all.parts.end(), list.parts.begin(), list.parts.end());
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
