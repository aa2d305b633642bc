#include "engine/relay.h"

#include "engine/passes.h"
#include "engine/phase_span.h"

namespace lasp {
namespace {

// The nearest rank with tokens on that side.
int32_t neighbour(const TokenRanges &ranges, int32_t rank, int32_t step) {
  for (int32_t other = rank + step; other >= 0 && other < ranges.positions(); other += step)
    if (ranges.tokens(other) > 0) return other;
  return -1;
}

}  // namespace

Relay::Relay(const Problem &problem, const TokenRanges &ranges, int32_t rank)
    : floats(problem.map_rows() * problem.heads * problem.state_size()) {
  const Owners owners = owners_of(ranges, 0, ranges.total());
  begins = rank == owners.first;
  ends = rank == owners.last;
  if (ranges.tokens(rank) == 0) return;
  before = neighbour(ranges, rank, -1);
  after = neighbour(ranges, rank, 1);
}

int32_t Relay::from(Pass pass) const { return pass == Pass::kForward ? before : after; }

int32_t Relay::to(Pass pass) const { return pass == Pass::kForward ? after : before; }

std::vector<StateMessage> Relay::messages() const {
  std::vector<StateMessage> all;
  for (const int32_t peer : {before, after})
    for (const bool is_send : {false, true})
      if (peer >= 0) all.push_back({is_send, peer, 0, state_bytes()});
  return all;
}

Relay::States Relay::place(Pass pass, Carver &workspace, Carver *cache) const {
  const auto take = [&](Carver &memory, int32_t peer) { return peer < 0 ? nullptr : memory.take<float>(floats); };
  States states;
  if (cache != nullptr) states.initial = take(*cache, before);
  const bool kept = pass == Pass::kForward && cache != nullptr;
  states.entering = kept ? states.initial : take(workspace, from(pass));
  states.leaving = take(workspace, to(pass));
  if (pass == Pass::kForward) states.initial = states.entering;
  return states;
}

void Passes::relay_state(float *states, bool is_send, int32_t peer, Pass pass, int32_t operation) {
  const StateMessage message{is_send, peer, 0, plan_.relay->state_bytes()};
  move_logged(states, {{&message, 1},
                       operation,
                       pass == Pass::kForward ? kTagLeft : kTagRight,
                       "states",
                       is_send ? "sending a state" : "waiting for a state"});
}

void Passes::relay(const ForwardBuffers &given, bool reuse_state_cache) {
  constexpr Pass pass = Pass::kForward;
  const Relay &relay = *plan_.relay;
  ForwardBuffers b = given;
  Carver workspace(given.workspace), cache(given.state_cache);
  const Relay::States states = relay.place(pass, workspace, given.state_cache != nullptr ? &cache : nullptr);
  b.workspace = static_cast<std::byte *>(given.workspace) + workspace.used();
  if (given.state_cache != nullptr) b.state_cache = static_cast<std::byte *>(given.state_cache) + cache.used();
  if (states.initial != nullptr || !relay.begins) b.initial_state = states.initial;
  if (!relay.ends) b.final_state = reuse_state_cache ? nullptr : states.leaving;
  if (reuse_state_cache) {
    backend().forward_from_cache(b);
  } else {
    const int32_t operation = comm().next_operation(OperationKind::kForward);
    if (states.entering != nullptr) relay_state(states.entering, false, relay.from(pass), pass, operation);
    {
      const PhaseSpan span(*this, "finish");
      backend().forward_alone(b);
    }
    if (states.leaving != nullptr) relay_state(states.leaving, true, relay.to(pass), pass, operation);
  }
  if (b.final_state != nullptr) backend().copy_empty_sequences(b.final_state, b.initial_state, false);
  if (given.final_state != nullptr && !reuse_state_cache && !plan_.broadcast.empty())
    broadcast_final_state(given.final_state);
}

void Passes::relay(const BackwardBuffers &given) {
  constexpr Pass pass = Pass::kBackward;
  const Relay &relay = *plan_.relay;
  BackwardBuffers b = given;
  Carver workspace(given.workspace), cache(const_cast<void *>(given.state_cache));  // which is only read
  const Relay::States states = relay.place(pass, workspace, &cache);
  b.workspace = static_cast<std::byte *>(given.workspace) + workspace.used();
  b.state_cache = static_cast<const std::byte *>(given.state_cache) + cache.used();
  if (states.initial != nullptr || !relay.begins) b.initial_state = states.initial;
  if (!relay.ends) b.d_final_state = states.entering;
  if (!relay.begins) {
    b.d_initial_state = states.leaving;  // where nothing lies that could be added to
    b.add &= ~LASP_ADD_D_INITIAL_STATE;
  }
  const int32_t operation = comm().next_operation(OperationKind::kBackward);
  if (states.entering != nullptr) relay_state(states.entering, false, relay.from(pass), pass, operation);
  {
    const PhaseSpan span(*this, "finish");
    backend().backward_alone(b);
  }
  if (b.d_initial_state != nullptr)
    backend().copy_empty_sequences(b.d_initial_state, b.d_final_state, b.adds(LASP_ADD_D_INITIAL_STATE));
  if (states.leaving != nullptr) relay_state(states.leaving, true, relay.to(pass), pass, operation);
}

}  // namespace lasp
