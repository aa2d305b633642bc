// The order of a pass. It is what makes a pass fast: the rank's own maps first, then the exchange, while that runs
// all work that needs no incoming state, and last what does.
#include "engine/passes.h"

#include <algorithm>

#include "engine/phase_span.h"

namespace lasp {
namespace {

// The phases of a pass that exchanges, by the type of its buffers.
template <class Buffers>
struct Phases {
  void (Backend::*states)(const Buffers &, const AffineMapView &left, const AffineMapView &right);
  void (Backend::*ahead)(const Buffers &, const Progress &);
  void (Backend::*finish)(const Buffers &, const Incoming &);
};

constexpr Phases<ForwardBuffers> phases_of(const ForwardBuffers &) {
  return {&Backend::forward_states, &Backend::forward_ahead, &Backend::forward_finish};
}
constexpr Phases<BackwardBuffers> phases_of(const BackwardBuffers &) {
  return {&Backend::backward_states, &Backend::backward_ahead, &Backend::backward_finish};
}

// The result that is written last: its memory is free until what comes in has been read.
Borrowed result_of(const Backend &backend, const ForwardBuffers &b) {
  return {b.o, backend.forward_result_bytes()};
}
Borrowed result_of(const Backend &backend, const BackwardBuffers &b) {
  if (b.adds(LASP_ADD_DV)) return {};  // what is there is wanted
  return {b.dv, backend.backward_result_bytes()};
}

}  // namespace

RunMaps::RunMaps(const AffineMap &map_, int32_t runs, Carver &workspace) : map(map_) {
  own.state = workspace.take<float>(runs * map.state_floats());
  own.transition = workspace.take<float>(runs * map.transition_floats());
  incoming = workspace.take<float>(runs * map.state_floats());
}

AffineMapView RunMaps::own_of(int32_t run) const {
  return {own.state + run * map.state_floats(), own.transition + run * map.transition_floats()};
}

PassMaps::PassMaps(const PassExchanges &exchanges, Carver &workspace, const Borrowed &result) {
  if (exchanges.left != nullptr) left.emplace(*exchanges.left, workspace, result);
  if (exchanges.right != nullptr) right.emplace(*exchanges.right, workspace, result);
  if (!left && !right) return;
  if (const ExchangePlan &plan = only().plan(); plan.runs() > 1) runs.emplace(plan.map, plan.runs(), workspace);
}

void Passes::spread_own(const PassMaps &maps) {
  for (int32_t run = 0; maps.runs && run < plan_.runs(); ++run) {
    const AffineMapView from = maps.runs->own_of(run), to = maps.only().local(run);
    if (to.state == nullptr) continue;  // nobody wants it
    const AffineMap &map = maps.runs->map;
    copy(to.state, from.state, static_cast<uint64_t>(map.state_floats()) * sizeof(float));
    copy(to.transition, from.transition, static_cast<uint64_t>(map.transition_floats()) * sizeof(float));
  }
}

void Passes::gather_incoming(const PassMaps &maps) {
  for (int32_t run = 0; maps.runs && run < plan_.runs(); ++run) {
    const float *const from = maps.only().incoming(run);
    const auto bytes = static_cast<uint64_t>(maps.runs->map.state_floats()) * sizeof(float);
    if (from != nullptr) {
      copy(maps.runs->incoming_of(run), from, bytes);
    } else {
      clear(maps.runs->incoming_of(run), bytes);
    }
  }
}

template <class Buffers>
void Passes::exchange(Pass pass, Buffers buffers) {
  Backend &kernels = backend();
  const PassExchanges &exchanges = plan_.exchanges(pass);
  Carver workspace(buffers.workspace);
  const PassMaps maps(exchanges, workspace, result_of(kernels, buffers));
  buffers.workspace = static_cast<std::byte *>(buffers.workspace) + workspace.used();
  const bool per_head = plan_.problem.decay == Decay::kHead;
  const float *log_decay = per_head ? static_cast<const float *>(buffers.decay) : nullptr;
  const auto phases = phases_of(buffers);
  try {
    open_exchange(pass, maps, log_decay);
    {
      const PhaseSpan span(*this, "states");
      (kernels.*phases.states)(buffers, maps.own_left(), maps.own_right());
    }
    const int32_t operation =
        comm().next_operation(pass == Pass::kForward ? OperationKind::kForward : OperationKind::kBackward);
    ExchangeLog exchange_log(log(), comm());
    spread_own(maps);
    for (const ExchangePlan *plan : {exchanges.left, exchanges.right})
      if (plan != nullptr) exchange_log.add(*plan);
    start_exchange(operation, exchange_log);
    {
      const PhaseSpan span(*this, "ahead");
      (kernels.*phases.ahead)(buffers, [&] { return advance_exchange(); });
    }
    await_exchange();
    gather_incoming(maps);
    {
      const PhaseSpan span(*this, "finish");
      (kernels.*phases.finish)(buffers, maps.incoming());
    }
    end_exchange(exchange_log);
  } catch (...) {
    cancel_exchange();
    throw;
  }
}

void Passes::forward(const ForwardBuffers &buffers, bool reuse_state_cache, lasp_stream stream) {
  const bool exchanges = plan_.forward.any() && !reuse_state_cache;
  run({"lasp forward", stream, exchanges || plan_.relays(reuse_state_cache)}, [&] {
    if (plan_.relay != nullptr) return relay(buffers, reuse_state_cache);
    begin(buffers);
    if (reuse_state_cache) {
      backend().forward_from_cache(buffers);
    } else if (exchanges) {
      exchange(Pass::kForward, buffers);
    } else {
      backend().forward_alone(buffers);
    }
    end(buffers);
    if (buffers.final_state == nullptr) return;
    backend().copy_empty_sequences(buffers.final_state, buffers.initial_state, false);
    if (!reuse_state_cache && !plan_.broadcast.empty()) broadcast_final_state(buffers.final_state);
  });
}

void Passes::backward(const BackwardBuffers &buffers, lasp_stream stream) {
  const bool exchanges = plan_.backward.any();
  run({"lasp backward", stream, exchanges || plan_.relays(false)}, [&] {
    if (plan_.relay != nullptr) return relay(buffers);
    begin(buffers);
    if (exchanges) {
      exchange(Pass::kBackward, buffers);
    } else {
      backend().backward_alone(buffers);
    }
    end(buffers);
    if (buffers.d_initial_state != nullptr)
      backend().copy_empty_sequences(buffers.d_initial_state, buffers.d_final_state,
                                     buffers.adds(LASP_ADD_D_INITIAL_STATE));
  });
}

void Passes::step(const StepBuffers &buffers, lasp_stream stream) {
  run({"lasp step", stream, false}, [&] { backend().step(buffers); });
}

void Passes::broadcast_final_state(float *final_state) {
  move_logged(final_state, {plan_.broadcast, comm().next_operation(OperationKind::kFinalState), kTagFinalState,
                            "final states", "broadcasting final states"});
}

void Passes::move_logged(float *states, const StateMessages &messages) {
  ExchangeLog exchange_log(log(), comm());
  for (const StateMessage &message : messages.list) exchange_log.add(message.is_send, message.peer, message.bytes);
  move(states, messages, exchange_log);
}

}  // namespace lasp
