// Runs a schedule's steps over a comm, without blocking while there is other work to do: start, advance as often as
// one likes, finish. One exchange moves maps in one direction.
#pragma once

#include <cstdint>

#include "comm/comm.h"
#include "core/affine_map.h"
#include "core/map_composer.h"
#include "core/problem.h"
#include "core/token_partition.h"
#include "core/workspace.h"
#include "exchange/schedule.h"

namespace lasp {

enum class Direction : int32_t { kLeftToRight = 0, kRightToLeft = 1 };

// The fixed part, made at plan creation.
struct ExchangePlan {
  Direction direction = Direction::kLeftToRight;
  StepList list;
  int32_t rank = 0, nranks = 1;  // this position among all, in the order of tokens; with one run each, ranks
  AffineMap map;                 // what is moved
  std::vector<char> resets;      // by position in the order of tokens: its map forgets what came before
  std::vector<int64_t> tokens;   // likewise
  std::vector<int32_t> owner;    // likewise: its rank, where that is another number
  std::vector<int8_t> runs;      // likewise, with owners: which of that rank's runs it is
  int32_t run = 0;               // of its rank's, this is the map of

  // A step's positions count in the scan's direction.
  int32_t place_of(int32_t position) const {
    return direction == Direction::kLeftToRight ? position : nranks - 1 - position;
  }
  int32_t peer_rank(int32_t position) const {
    const int32_t place = place_of(position);
    return owner.empty() ? place : owner[static_cast<size_t>(place)];
  }
  // Whether the peer of a message is another run of this rank.
  bool is_local(const ExchangeStep &step) const {
    return !owner.empty() && peer_rank(step.peer) == owner[static_cast<size_t>(rank)];
  }
  int32_t run_of(int32_t position) const {
    return owner.empty() ? 0 : runs[static_cast<size_t>(place_of(position))];
  }
  // Whether a message brings the transition too. If not, the receiver works it out where it needs it.
  bool brings_transition(const ExchangeStep &step) const { return step.transition && !map.is_known(); }
  bool knows_transition(const ExchangeStep &step) const { return step.transition && map.is_known(); }
  uint64_t message_bytes(const ExchangeStep &step) const;
  uint64_t bytes_sent() const;
  uint64_t messages_sent() const;
};

// Of one run of tokens, by its position.
ExchangePlan make_exchange_plan(const Problem &problem, const TokenRanges &ranges, int32_t position,
                                Direction direction, int32_t schedule, int32_t pieces);

// Memory of any alignment that has another use later.
struct Borrowed {
  void *data = nullptr;
  uint64_t bytes = 0;
};

// The maps of one exchange, slots of [state | transition]: the first ones, as many as fit, in borrowed memory, the
// others in the workspace.
class Slots {
 public:
  explicit Slots(const ExchangePlan &plan, Carver &workspace, const Borrowed &borrowed = {});

  float *state(int32_t slot) const {
    return slot < num_borrowed_ ? borrowed_ + slot * stride_ : own_ + (slot - num_borrowed_) * stride_;
  }
  AffineMapView map(int32_t slot) const { return plan_->map.view(state(slot)); }
  // Where the message of a send or receive begins.
  float *message(const ExchangeStep &step) const {
    return state(step.slot) + step.begin * plan_->map.slice_floats();
  }
  // This rank's own map, to be filled before the exchange; null when nobody wants it.
  AffineMapView local() const { return plan_->list.own < 0 ? AffineMapView{} : map(plan_->list.own); }
  // The incoming state, after the exchange; null when none comes.
  const float *incoming() const { return plan_->list.result < 0 ? nullptr : state(plan_->list.result); }
  const ExchangePlan &plan() const { return *plan_; }

 private:
  const ExchangePlan *plan_;
  float *borrowed_, *own_;
  int32_t num_borrowed_;
  int64_t stride_;  // floats from slot to slot
};

// The transition of the ranks that a received map covers, and of this rank's own map, where AffineMap::is_known().
KnownTransition known_transition(const ExchangePlan &plan, const ExchangeStep &step);
KnownTransition known_transition(const ExchangePlan &plan);

// An exchange between host memories.
class Exchange {
 public:
  explicit Exchange(const Slots &slots) : plan_(&slots.plan()), slots_(slots) {}

  // `log_decay` is [H] for per-head decay, else null. Where this rank has two runs, `upper` is the exchange of the
  // one that comes later in the scan: messages to it are copies, and it is started before this one.
  void start(Comm &comm, MapComposer &composer, Messages &messages, std::vector<size_t> &receipts, int32_t tag,
             const WaitPolicy &policy, const float *log_decay, Exchange *upper = nullptr);
  // True when every step has been done and every message is through: some transports move data only when called.
  bool advance();
  void finish();

 private:
  void run(const ExchangeStep &step);
  void compose(const ExchangeStep &step);
  bool step_through(bool block);
  int32_t tag_of_message(int32_t from_run, int32_t to_run) const;
  void deliver(int32_t place, const float *from, uint64_t bytes);

  const ExchangePlan *plan_;
  Slots slots_;
  Comm *comm_ = nullptr;
  MapComposer *composer_ = nullptr;
  Messages *messages_ = nullptr;
  std::vector<size_t> *receipts_ = nullptr;  // by step: the message index of a receive
  const float *log_decay_ = nullptr;
  int32_t tag_ = 0;
  const WaitPolicy *policy_ = nullptr;
  size_t next_ = 0;
  Exchange *upper_ = nullptr;
};

}  // namespace lasp
