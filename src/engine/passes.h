// The passes of a plan. Their order is the same on every device and stands in passes.cpp; how a device runs a call,
// and how the maps of a pass travel between ranks, is what it implements: cpu/passes.h with messages that it looks
// after between pieces of work, cuda/passes.h with work enqueued on a stream of its own.
#pragma once

#include <lasp/lasp.h>

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/function_ref.h"
#include "core/problem.h"
#include "core/token_partition.h"
#include "core/workspace.h"
#include "engine/backend.h"
#include "engine/map_layout.h"
#include "engine/relay.h"
#include "exchange/exchange.h"
#include "exchange/exchange_log.h"

namespace lasp {

enum class Pass { kForward, kBackward };

// What a pass exchanges, left to right and right to left. Null: it sends nothing that way.
struct PassExchanges {
  const ExchangePlan *left = nullptr, *right = nullptr;
  bool any() const { return left != nullptr || right != nullptr; }
};

// A message of states that no exchange moves: `bytes` from `offset` floats on.
struct StateMessage {
  bool is_send = false;
  int32_t peer = -1;
  int64_t offset = 0;
  uint64_t bytes = 0;
};
// Such messages of one operation: how they are told from others, and what they are called.
struct StateMessages {
  std::span<const StateMessage> list;
  int32_t operation;
  TagKind tag;
  const char *name, *doing;
};

// What the stages need.
struct StagePlan {
  MapLayout layout;
  int32_t most_runs = 1;        // of a rank: each gives so many maps, first those of its runs
  std::vector<int32_t> map_of;  // by position in the order of tokens: its map among those of all ranks
};

// What passes need of their plan, which outlives them. With a relay its tokens are those of a group of one.
struct PassPlan {
  const Problem &problem;
  const TokenPartition &partition;  // packed: of one sequence of all tokens
  const TokenRanges &ranges;
  int32_t rank;
  PassExchanges forward, backward;
  const Relay *relay;                          // in place of exchanges; null: there is none
  const std::vector<StateMessage> &broadcast;  // empty: final states stay where they are
  const ExchangePlan &left, &right;            // of either direction, exchanged or not
  StagePlan stages;

  int32_t runs() const { return problem.runs; }
  bool relays(bool reuse_state_cache) const { return relay != nullptr && !reuse_state_cache; }
  // Whose maps the pass makes, in the direction in which states go.
  const ExchangePlan &scan(Pass pass) const { return pass == Pass::kForward ? left : right; }
  const PassExchanges &exchanges(Pass pass) const { return pass == Pass::kForward ? forward : backward; }
};

// The maps of a rank's several runs as the backend makes them and takes what comes in: those of all runs together,
// each part by itself. Of one run there are none.
struct RunMaps {
  RunMaps(const AffineMap &map, int32_t runs, Carver &workspace);

  AffineMapView own;          // [runs, rows ...]
  float *incoming = nullptr;  // [runs, rows, H, K, V]
  // Those of one run.
  AffineMapView own_of(int32_t run) const;
  float *incoming_of(int32_t run) const { return incoming + run * map.state_floats(); }

  AffineMap map;  // of one run
};

// The memory of the maps that one pass exchanges, from the beginning of the pass's workspace. `result` is memory of
// the pass's result that nothing touches before it has read what came in.
struct PassMaps {
  PassMaps(const PassExchanges &exchanges, Carver &workspace, const Borrowed &result);

  std::optional<Slots> left, right;
  std::optional<RunMaps> runs;  // where this rank has several; then it exchanges one way

  AffineMapView own_left() const { return own(left); }
  AffineMapView own_right() const { return own(right); }
  Incoming incoming() const { return {incoming(left), incoming(right)}; }
  const Slots &only() const { return left ? *left : *right; }

 private:
  AffineMapView own(const std::optional<Slots> &way) const {
    return !way ? AffineMapView{} : runs ? runs->own : way->local();
  }
  const float *incoming(const std::optional<Slots> &way) const {
    return !way ? nullptr : runs ? runs->incoming : way->incoming();
  }
};

class Passes {
 public:
  virtual ~Passes() = default;
  Passes(const Passes &) = delete;
  Passes &operator=(const Passes &) = delete;

  virtual Backend &backend() = 0;
  const StagePlan &stages() const { return plan_.stages; }

  // Buffers have been checked. CPU: return when done; CUDA: when all is enqueued on the stream. Throw Error.
  void forward(const ForwardBuffers &buffers, bool reuse_state_cache, lasp_stream stream);
  void backward(const BackwardBuffers &buffers, lasp_stream stream);
  void step(const StepBuffers &buffers, lasp_stream stream);
  // The stages of a pass (stages.cpp): this rank's map into a caller's memory; and, with the state that came in
  // (null: zero), the rest. Where buffers have a `carry`, apply goes on from it.
  void summarize(const ForwardBuffers &buffers, void *map, lasp_stream stream);
  void summarize(const BackwardBuffers &buffers, void *map, lasp_stream stream);
  void apply(const ForwardBuffers &buffers, const float *incoming, lasp_stream stream);
  void apply(const BackwardBuffers &buffers, const float *incoming, lasp_stream stream);
  // to = later after earlier; the states that enter this rank's runs, from the maps of all ranks in their order.
  void compose_maps(void *to, const void *later, const void *earlier, lasp_stream stream);
  void apply_maps(float *incoming, const void *maps, Pass pass, lasp_stream stream);
  // What a first call would do lazily. Collective; ends when it has run.
  virtual void prepare(lasp_stream stream) = 0;

 protected:
  explicit Passes(const PassPlan &plan);
  const PassPlan &plan() const { return plan_; }

  struct Call {
    const char *name;  // in a profiler
    lasp_stream stream;
    bool communicates;
  };
  // Runs the body of a call, with what the device has around it.
  virtual void run(const Call &call, FunctionRef<void()> body) = 0;

  virtual Comm &comm() const = 0;
  virtual const Log &log() const = 0;

  // With a trace, around a phase that is enqueued: what is recorded of the device, -1 for nothing.
  virtual int32_t begin_span(const char * /*name*/) { return -1; }
  virtual void end_span(int32_t /*span*/) {}

  // An exchange, in calls of this order; where one of them or a phase between them throws, cancel_exchange() in
  // place of the others. `log` is written where the host knows that the exchange has ended, or that it is enqueued.
  // Before the rank's own maps are there; `log_decay` is [H] for per-head decay, else null.
  virtual void open_exchange(Pass pass, const PassMaps &maps, const float *log_decay) = 0;
  // They are there. `maps` are still the same.
  virtual void start_exchange(int32_t operation, const ExchangeLog &log) = 0;
  // While the backend works ahead: true once nothing is left to wait for, so that it may stop.
  virtual bool advance_exchange() = 0;
  // The work that follows finds what came in.
  virtual void await_exchange() = 0;
  // After the pass's last phase.
  virtual void end_exchange(const ExchangeLog &log) = 0;
  virtual void cancel_exchange() = 0;

  // In memory that the phases use, in their order.
  virtual void copy(void *to, const void *from, uint64_t bytes) = 0;
  virtual void clear(void *to, uint64_t bytes) = 0;
  // Factors that keep all, in the code of core/decay.h.
  virtual void keep_all(float *factors, int64_t count) = 0;

  // Of a packed plan, before anything else in a call: the sequences of this one. A device that finds them itself,
  // from the packing in a call's buffers, does nothing here.
  virtual void set_packing(const Packing &) {}

  // From and to `states`, after the work before and before the work that follows.
  virtual void move(float *states, const StateMessages &messages, const ExchangeLog &log) = 0;

 private:
  class PhaseSpan;
  template <class Buffers>
  void exchange(Pass pass, Buffers buffers);
  // Around the body of a call.
  template <class Buffers>
  void begin(const Buffers &buffers) {
    if (plan_.problem.packed) set_packing(buffers.packing);
  }
  template <class Buffers>
  void end(const Buffers &buffers) {
    if (plan_.problem.packed) backend().clear_padding(buffers);
  }
  void broadcast_final_state(float *final_state);
  void move_logged(float *states, const StateMessages &messages);
  void relay(const ForwardBuffers &buffers, bool reuse_state_cache);
  void relay(const BackwardBuffers &buffers);
  void relay_state(float *states, bool is_send, int32_t peer, Pass pass, int32_t operation);
  // With several runs: from the maps of all, as the backend makes them, to those that are sent, and back.
  void spread_own(const PassMaps &maps);
  void gather_incoming(const PassMaps &maps);
  // Stages.
  template <class Buffers>
  void summarize(const char *name, Buffers buffers, void *maps, lasp_stream stream);
  void spread_maps(Pass pass, const RunMaps &runs, void *maps, const void *decay, lasp_stream stream);
  void complete_map(Pass pass, int32_t run, const AffineMapView &own, const void *decay, lasp_stream stream);
  void fold_maps(float *incoming, const void *maps, const ExchangePlan &scan, int32_t before, lasp_stream stream);

  PassPlan plan_;
  std::vector<AffineMapView> later_;  // maps that are composed at once
};

}  // namespace lasp
