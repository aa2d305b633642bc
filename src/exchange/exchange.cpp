#include "exchange/exchange.h"

#include <algorithm>
#include <cstring>

namespace lasp {
namespace {

// Whether rank r's map forgets its input: the sequence begins on it. Of a packed problem the transitions travel
// (AffineMap::is_known), and nobody asks.
bool resets(const TokenRanges &ranges, int32_t position, Direction direction) {
  const auto r = static_cast<size_t>(position);
  const int64_t begin = ranges.begin[r], end = ranges.begin[r + 1];
  if (begin == end) return false;
  return direction == Direction::kLeftToRight ? begin == 0 : end == ranges.total();
}

int64_t whole_lines(int64_t floats) {
  const int64_t line = kAlignment / sizeof(float);
  return (floats + line - 1) / line * line;
}

}  // namespace

uint64_t ExchangePlan::message_bytes(const ExchangeStep &step) const {
  if (step.alone)
    return static_cast<uint64_t>(map.transition_at(step.end) - map.transition_at(step.begin)) * sizeof(float);
  int64_t floats = (step.end - step.begin) * map.slice_floats();
  if (brings_transition(step)) floats += map.transition_floats();
  return static_cast<uint64_t>(floats) * sizeof(float);
}

uint64_t ExchangePlan::bytes_sent() const {
  uint64_t bytes = 0;
  for (const ExchangeStep &step : list.steps)
    if (step.op == Op::kSend) bytes += message_bytes(step);
  return bytes;
}

uint64_t ExchangePlan::messages_sent() const {
  return static_cast<uint64_t>(std::count_if(list.steps.begin(), list.steps.end(),
                                             [](const ExchangeStep &step) { return step.op == Op::kSend; }));
}

std::vector<int64_t> find_slot_offsets(const ExchangePlan &plan) {
  const AffineMap &map = plan.map;
  std::vector<int64_t> offsets;
  if (plan.list.parts.empty()) return offsets;
  offsets.push_back(0);
  for (const Slices &part : plan.list.parts) {
    const int64_t transition =
        map.is_known() ? map.transition_floats() : map.transition_at(part.end) - map.transition_at(part.begin);
    offsets.push_back(offsets.back() + whole_lines((part.end - part.begin) * map.slice_floats() + transition));
  }
  return offsets;
}

ExchangePlan make_exchange_plan(const Problem &problem, const TokenRanges &ranges, int32_t rank,
                                Direction direction, int32_t schedule, int32_t pieces) {
  ExchangePlan plan;
  plan.direction = direction;
  plan.schedule = schedule;
  plan.rank = rank;
  plan.positions = ranges.positions();
  plan.owner = ranges.owner;
  plan.map = affine_map_of(problem);
  for (int32_t r = 0; r < plan.positions; ++r) {
    plan.resets.push_back(resets(ranges, r, direction));
    plan.tokens.push_back(ranges.tokens(r));
  }
  std::vector<StepList> lists;
  const int32_t runs = ranges.runs_of(rank);
  const bool forward = direction == Direction::kLeftToRight;
  for (int32_t n = 0; n < runs; ++n) {
    const int32_t position = ranges.position_of(rank, forward ? n : runs - 1 - n);
    lists.push_back(make_steps(schedule, plan.place_of(position), plan.positions, plan.map, pieces));
  }
  plan.list = join_lists(lists);
  plan.receives = order_of_receives(plan.list);
  plan.slot_offsets = find_slot_offsets(plan);
  if (!forward) {
    std::reverse(plan.list.own.begin(), plan.list.own.end());
    std::reverse(plan.list.result.begin(), plan.list.result.end());
  }
  return plan;
}

Slots::Slots(const ExchangePlan &plan, Carver &workspace, const Borrowed &borrowed) : plan_(&plan) {
  stride_ = whole_lines(plan.map.floats());
  // As many whatever the address is, so that the workspace is the same.
  const uint64_t aligned_bytes = borrowed.bytes - std::min(borrowed.bytes, kAlignment);
  num_borrowed_ = 0;
  while (num_borrowed_ < plan.list.slots &&
         static_cast<uint64_t>(offset(num_borrowed_ + 1)) * sizeof(float) <= aligned_bytes)
    ++num_borrowed_;
  const auto address = (reinterpret_cast<uintptr_t>(borrowed.data) + kAlignment - 1) / kAlignment * kAlignment;
  borrowed_ = reinterpret_cast<float *>(address);
  own_ = workspace.take<float>(offset(plan.list.slots) - offset(num_borrowed_));
}

// A transition that all ranks know is filled in whole.
AffineMapView Slots::map(int32_t slot) const {
  const AffineMap &map = plan_->map;
  const Slices part = plan_->part_of(slot);
  float *const transition = memory(slot) + (part.end - part.begin) * map.slice_floats();
  return {state(slot), map.is_known() ? transition : transition - map.transition_at(part.begin)};
}

KnownTransition known_transition(const ExchangePlan &plan, const ExchangeStep &step) {
  KnownTransition known;
  for (int32_t position = step.first; position <= step.last; ++position) {
    const auto place = static_cast<size_t>(plan.place_of(position));
    known.reset = known.reset || plan.resets[place];
    known.tokens += plan.tokens[place];
  }
  return known;
}

KnownTransition known_transition(const ExchangePlan &plan, int32_t place) {
  const auto at = static_cast<size_t>(place);
  return {plan.resets[at] != 0, plan.tokens[at]};
}

void Exchange::start(Comm &comm, MapComposer &composer, Messages &messages, std::vector<size_t> &receipts,
                     int32_t tag, const WaitPolicy &policy, const float *log_decay) {
  comm_ = &comm;
  composer_ = &composer;
  messages_ = &messages;
  receipts_ = &receipts;
  log_decay_ = log_decay;
  tag_ = tag;
  policy_ = &policy;
  next_ = 0;
  // Every receive has memory of its own, so all are posted before anything is waited for.
  for (const size_t i : plan_->receives) {
    const ExchangeStep &step = plan_->list.steps[i];
    receipts[i] =
        messages.receive(comm, slots_.message(step), plan_->message_bytes(step), plan_->peer_rank(step.peer), tag_);
  }
  advance();
}

bool Exchange::advance() { return step_through(false) && messages_->test_all(*comm_); }

void Exchange::finish() { step_through(true); }

bool Exchange::step_through(bool block) {
  const std::vector<ExchangeStep> &steps = plan_->list.steps;
  for (; next_ < steps.size(); ++next_) {
    const ExchangeStep &step = steps[next_];
    if (step.op == Op::kReceive) {
      const size_t index = (*receipts_)[next_];
      if (!block && !messages_->test(*comm_, index)) return false;
      // The full limit even after a test that said "done": it is only a hint.
      messages_->wait(*comm_, index, *policy_, "waiting for a state");
    }
    run(step);
  }
  return true;
}

void Exchange::run(const ExchangeStep &step) {
  switch (step.op) {
    case Op::kSend:
      messages_->send(*comm_, slots_.message(step), plan_->message_bytes(step), plan_->peer_rank(step.peer), tag_);
      break;
    case Op::kReceive: fill_transition(step); break;
    case Op::kCopy:
      std::memcpy(slots_.message(step), slots_.source(step), plan_->message_bytes(step));
      fill_transition(step);
      break;
    case Op::kCompose: compose(step); break;
  }
}

void Exchange::fill_transition(const ExchangeStep &step) {
  if (plan_->knows_transition(step))
    composer_->fill_known_transition(nullptr, slots_.map(step.slot).transition, known_transition(*plan_, step),
                                     log_decay_);
}

void Exchange::compose(const ExchangeStep &step) {
  AffineMapView to = slots_.map(step.slot);
  if (!step.transition) to.transition = nullptr;
  const AffineMapView later = slots_.map(step.later);
  composer_->compose(nullptr, to, {&later, 1}, slots_.map(step.earlier), step.begin, step.end);
}

}  // namespace lasp
