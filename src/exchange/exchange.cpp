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

// In place of a message's index: of another run of this rank.
constexpr size_t kToCome = static_cast<size_t>(-1), kHasCome = static_cast<size_t>(-2);

}  // namespace

uint64_t ExchangePlan::message_bytes(const ExchangeStep &step) const {
  int64_t floats = (step.end - step.begin) * map.slice_floats();
  if (brings_transition(step)) floats += map.transition_floats();
  return static_cast<uint64_t>(floats) * sizeof(float);
}

uint64_t ExchangePlan::bytes_sent() const {
  uint64_t bytes = 0;
  for (const ExchangeStep &step : list.steps)
    if (step.op == Op::kSend && !is_local(step)) bytes += message_bytes(step);
  return bytes;
}

uint64_t ExchangePlan::messages_sent() const {
  return static_cast<uint64_t>(
      std::count_if(list.steps.begin(), list.steps.end(),
                    [this](const ExchangeStep &step) { return step.op == Op::kSend && !is_local(step); }));
}

ExchangePlan make_exchange_plan(const Problem &problem, const TokenRanges &ranges, int32_t position,
                                Direction direction, int32_t schedule, int32_t pieces) {
  ExchangePlan plan;
  plan.direction = direction;
  plan.rank = position;
  plan.nranks = ranges.positions();
  plan.owner = ranges.owner;
  std::vector<int8_t> seen(static_cast<size_t>(ranges.nranks()), 0);
  for (const int32_t rank : ranges.owner) plan.runs.push_back(seen[static_cast<size_t>(rank)]++);
  plan.map = affine_map_of(problem);
  const int32_t in_scan = plan.place_of(position);  // its own inverse
  plan.run = plan.run_of(in_scan);
  plan.list = make_steps(schedule, in_scan, plan.nranks, plan.map, pieces);
  for (int32_t r = 0; r < plan.nranks; ++r) {
    plan.resets.push_back(resets(ranges, r, direction));
    plan.tokens.push_back(ranges.tokens(r));
  }
  return plan;
}

Slots::Slots(const ExchangePlan &plan, Carver &workspace, const Borrowed &borrowed) : plan_(&plan) {
  const int64_t line = kAlignment / sizeof(float);
  stride_ = (plan.map.floats() + line - 1) / line * line;
  // As many whatever the address is, so that the workspace is the same.
  const uint64_t aligned_bytes = borrowed.bytes - std::min(borrowed.bytes, kAlignment);
  const uint64_t most = aligned_bytes / (static_cast<uint64_t>(stride_) * sizeof(float));
  num_borrowed_ = static_cast<int32_t>(std::min(most, static_cast<uint64_t>(plan.list.slots)));
  const auto address = (reinterpret_cast<uintptr_t>(borrowed.data) + kAlignment - 1) / kAlignment * kAlignment;
  borrowed_ = reinterpret_cast<float *>(address);
  own_ = workspace.take<float>(stride_ * (plan.list.slots - num_borrowed_));
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

KnownTransition known_transition(const ExchangePlan &plan) {
  const auto rank = static_cast<size_t>(plan.rank);
  return {plan.resets[rank] != 0, plan.tokens[rank]};
}

void Exchange::start(Comm &comm, MapComposer &composer, Messages &messages, std::vector<size_t> &receipts,
                     int32_t tag, const WaitPolicy &policy, const float *log_decay, Exchange *upper) {
  comm_ = &comm;
  composer_ = &composer;
  messages_ = &messages;
  receipts_ = &receipts;
  log_decay_ = log_decay;
  tag_ = tag;
  policy_ = &policy;
  next_ = 0;
  upper_ = upper;
  // Every receive has memory of its own, so all are posted before anything is waited for.
  for (size_t i = 0; i < plan_->list.steps.size(); ++i) {
    const ExchangeStep &step = plan_->list.steps[i];
    if (step.op != Op::kReceive) continue;
    receipts[i] = kToCome;
    if (!plan_->is_local(step))
      receipts[i] =
          messages.receive(comm, slots_.message(step), plan_->message_bytes(step), plan_->peer_rank(step.peer),
                           tag_of_message(plan_->run_of(step.peer), plan_->run));
  }
  advance();
}

// Two ranks of two runs each have up to four messages of one operation on their way between them.
int32_t Exchange::tag_of_message(int32_t from_run, int32_t to_run) const {
  return plan_->owner.empty() ? tag_ : tag_ + from_run * kMostRuns + to_run;
}

void Exchange::deliver(int32_t place, const float *from, uint64_t bytes) {
  const std::vector<ExchangeStep> &steps = plan_->list.steps;
  for (size_t i = 0; i < steps.size(); ++i) {
    const bool waits = steps[i].op == Op::kReceive && (*receipts_)[i] == kToCome;
    if (!waits || plan_->place_of(steps[i].peer) != place) continue;
    std::memcpy(slots_.message(steps[i]), from, bytes);
    (*receipts_)[i] = kHasCome;
    return;
  }
}

bool Exchange::advance() { return step_through(false) && messages_->test_all(*comm_); }

void Exchange::finish() { step_through(true); }

bool Exchange::step_through(bool block) {
  const std::vector<ExchangeStep> &steps = plan_->list.steps;
  for (; next_ < steps.size(); ++next_) {
    const ExchangeStep &step = steps[next_];
    if (step.op == Op::kReceive) {
      const size_t index = (*receipts_)[next_];
      if (index == kToCome) return false;  // of the run before, whose exchange ends first
      if (!block && index != kHasCome && !messages_->test(*comm_, index)) return false;
      // The full limit even after a test that said "done": it is only a hint.
      if (index != kHasCome) messages_->wait(*comm_, index, *policy_, "waiting for a state");
    }
    run(step);
  }
  return true;
}

void Exchange::run(const ExchangeStep &step) {
  switch (step.op) {
    case Op::kSend:
      if (plan_->is_local(step)) {
        upper_->deliver(plan_->rank, slots_.message(step), plan_->message_bytes(step));
        break;
      }
      messages_->send(*comm_, slots_.message(step), plan_->message_bytes(step), plan_->peer_rank(step.peer),
                      tag_of_message(plan_->run, plan_->run_of(step.peer)));
      break;
    case Op::kReceive:
      if (plan_->knows_transition(step))
        composer_->fill_known_transition(nullptr, slots_.map(step.slot).transition, known_transition(*plan_, step),
                                         log_decay_);
      break;
    case Op::kCompose: compose(step); break;
  }
}

void Exchange::compose(const ExchangeStep &step) {
  AffineMapView to = slots_.map(step.slot);
  if (!step.transition) to.transition = nullptr;
  const AffineMapView later = slots_.map(step.later);
  composer_->compose(nullptr, to, {&later, 1}, slots_.map(step.earlier), step.begin, step.end);
}

}  // namespace lasp
