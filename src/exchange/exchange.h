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

// The fixed part, made at plan creation: of all runs of tokens of a rank.
struct ExchangePlan {
  Direction direction = Direction::kLeftToRight;
  StepList list;         // own and result: by run, in the order of this rank's tokens
  int32_t schedule = 0;  // LASP_SCHEDULE_*
  int32_t rank = 0, positions = 1;
  AffineMap map;                 // what is moved
  std::vector<char> resets;      // by position in the order of tokens: its map forgets what came before
  std::vector<int64_t> tokens;   // likewise
  std::vector<int32_t> owner;    // likewise: its rank; none: that has the same number
  std::vector<size_t> receives;  // order_of_receives(list)
  // By slot, and behind the last: where it begins, in floats; none: they are all of one size.
  std::vector<int64_t> slot_offsets;

  // A step's positions count in the scan's direction.
  int32_t place_of(int32_t position) const {
    return direction == Direction::kLeftToRight ? position : positions - 1 - position;
  }
  int32_t peer_rank(int32_t position) const {
    const int32_t place = place_of(position);
    return owner.empty() ? place : owner[static_cast<size_t>(place)];
  }
  int32_t runs() const { return static_cast<int32_t>(list.own.size()); }
  Slices part_of(int32_t slot) const {
    return list.parts.empty() ? map.all() : list.parts[static_cast<size_t>(slot)];
  }
  // Whether a message brings the transition too. If not, the receiver works it out where it needs it.
  bool brings_transition(const ExchangeStep &step) const { return step.transition && !map.is_known(); }
  // Of a receive, and of a copy in its place.
  bool knows_transition(const ExchangeStep &step) const { return step.transition && map.is_known(); }
  uint64_t message_bytes(const ExchangeStep &step) const;
  uint64_t bytes_sent() const;
  uint64_t messages_sent() const;
};

ExchangePlan make_exchange_plan(const Problem &problem, const TokenRanges &ranges, int32_t rank,
                                Direction direction, int32_t schedule, int32_t pieces);

// Of a list whose slots hold parts of maps.
std::vector<int64_t> find_slot_offsets(const ExchangePlan &plan);

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

  // Of a slot that holds some heads, where those of a whole map would begin.
  float *state(int32_t slot) const { return memory(slot) - plan_->part_of(slot).begin * plan_->map.slice_floats(); }
  AffineMapView map(int32_t slot) const;
  // Where the message of a send or receive begins; and where a copy reads.
  float *message(const ExchangeStep &step) const { return part(step, step.slot); }
  const float *source(const ExchangeStep &step) const { return part(step, step.earlier); }
  // A run's own map, to be filled before the exchange; null when nobody wants it.
  AffineMapView local(int32_t run = 0) const {
    const int32_t slot = run < plan_->runs() ? plan_->list.own[static_cast<size_t>(run)] : -1;
    return slot < 0 ? AffineMapView{} : map(slot);
  }
  // The state that enters a run, after the exchange; null when none comes.
  const float *incoming(int32_t run = 0) const {
    const int32_t slot = run < plan_->runs() ? plan_->list.result[static_cast<size_t>(run)] : -1;
    return slot < 0 ? nullptr : state(slot);
  }
  const ExchangePlan &plan() const { return *plan_; }

 private:
  float *part(const ExchangeStep &step, int32_t slot) const {
    if (step.alone) return map(slot).transition + plan_->map.transition_at(step.begin);
    return state(slot) + step.begin * plan_->map.slice_floats();
  }
  int64_t offset(int32_t slot) const {
    return plan_->slot_offsets.empty() ? slot * stride_ : plan_->slot_offsets[static_cast<size_t>(slot)];
  }
  float *memory(int32_t slot) const {
    return slot < num_borrowed_ ? borrowed_ + offset(slot) : own_ + (offset(slot) - offset(num_borrowed_));
  }

  const ExchangePlan *plan_;
  float *borrowed_, *own_;
  int32_t num_borrowed_;
  int64_t stride_;  // floats from slot to slot, of whole maps
};

// The transition of the positions that a received map covers, where AffineMap::is_known().
KnownTransition known_transition(const ExchangePlan &plan, const ExchangeStep &step);
// Likewise of one position, in the order of tokens.
KnownTransition known_transition(const ExchangePlan &plan, int32_t place);

// An exchange between host memories.
class Exchange {
 public:
  explicit Exchange(const Slots &slots) : plan_(&slots.plan()), slots_(slots) {}

  // `log_decay` is [H] for per-head decay, else null.
  void start(Comm &comm, MapComposer &composer, Messages &messages, std::vector<size_t> &receipts, int32_t tag,
             const WaitPolicy &policy, const float *log_decay);
  // True when every step has been done and every message is through: some transports move data only when called.
  bool advance();
  void finish();

 private:
  void run(const ExchangeStep &step);
  void compose(const ExchangeStep &step);
  bool step_through(bool block);
  void fill_transition(const ExchangeStep &step);

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
};

}  // namespace lasp
