// The stages of a pass: its own phases, with the exchange left to the caller, who has the maps in memory of its
// own.
#include <cstddef>
#include <type_traits>

#include "engine/passes.h"

namespace lasp {
namespace {

const float *head_decay(const Problem &problem, const void *decay) {
  return problem.decay == Decay::kHead ? static_cast<const float *>(decay) : nullptr;
}

// Nothing is waited for: the rest is done at once.
constexpr auto kHasCome = [] { return true; };

}  // namespace

Passes::Passes(const PassPlan &plan) : plan_(plan) {
  later_.reserve(static_cast<size_t>(plan.ranges.positions()));  // a pass allocates nothing
}

// What all ranks can work out of a map is worked out as their exchange does it, so that bits are the same.
void Passes::complete_map(Pass pass, int32_t run, const AffineMapView &own, const void *decay, lasp_stream stream) {
  const MapLayout &layout = plan_.stages.layout;
  if (layout.map.is_known() && own.transition != nullptr)
    backend().fill_known_transition(stream, own.transition,
                                    known_transition(plan_.scan(pass), plan_.ranges.position_of(plan_.rank, run)),
                                    head_decay(plan_.problem, decay));
  clear(reinterpret_cast<std::byte *>(own.state) + layout.used, layout.bytes - layout.used);
}

void Passes::spread_maps(Pass pass, const RunMaps &runs, void *maps, const void *decay, lasp_stream stream) {
  const MapLayout &layout = plan_.stages.layout;
  const AffineMap &map = layout.map;
  for (int32_t run = 0; run < plan_.stages.most_runs; ++run) {
    void *const at = static_cast<std::byte *>(maps) + static_cast<uint64_t>(run) * layout.bytes;
    const AffineMapView to = layout.view(at);
    if (run >= plan_.runs()) {  // the map that changes nothing
      clear(at, layout.bytes);
      if (map.kind == Transition::kDense) {
        backend().fill_identity(to);
      } else if (to.transition != nullptr) {
        keep_all(to.transition, map.transition_floats());
      }
      continue;
    }
    const AffineMapView from = runs.own_of(run);
    copy(to.state, from.state, layout.state_bytes());
    if (to.transition != nullptr)
      copy(to.transition, from.transition, static_cast<uint64_t>(map.transition_floats()) * sizeof(float));
    complete_map(pass, run, to, decay, stream);
  }
}

template <class Buffers>
void Passes::summarize(const char *name, Buffers buffers, void *maps, lasp_stream stream) {
  constexpr bool forward = std::is_same_v<Buffers, ForwardBuffers>;
  constexpr Pass pass = forward ? Pass::kForward : Pass::kBackward;
  const auto states = [&](const AffineMapView &own) {
    if constexpr (forward) {
      backend().forward_states(buffers, own, {});
    } else {
      backend().backward_states(buffers, {}, own);
    }
  };
  run({name, stream, false}, [&] {
    begin(buffers);
    if (plan_.stages.most_runs == 1 && plan_.runs() == 1) {
      const AffineMapView own = plan_.stages.layout.view(maps);
      states(own);
      return complete_map(pass, 0, own, buffers.decay, stream);
    }
    Carver workspace(buffers.workspace);
    const RunMaps runs(plan_.stages.layout.map, plan_.runs(), workspace);
    buffers.workspace = static_cast<std::byte *>(buffers.workspace) + workspace.used();
    states(runs.own);
    spread_maps(pass, runs, maps, buffers.decay, stream);
  });
}

void Passes::summarize(const ForwardBuffers &buffers, void *maps, lasp_stream stream) {
  summarize("lasp forward summarize", buffers, maps, stream);
}

void Passes::summarize(const BackwardBuffers &buffers, void *maps, lasp_stream stream) {
  summarize("lasp backward summarize", buffers, maps, stream);
}

// In a group of one nothing enters, and the whole pass has an order of sums of its own.
void Passes::apply(const ForwardBuffers &buffers, const float *incoming, lasp_stream stream) {
  if (plan_.ranges.nranks() == 1) return forward(buffers, false, stream);
  run({"lasp forward apply", stream, false}, [&] {
    begin(buffers);
    if (buffers.carry != nullptr) {
      backend().forward_resume(buffers);
    } else {
      ForwardBuffers whole = buffers;
      whole.keep_map = true;
      backend().forward_states(whole, {}, {});
    }
    backend().forward_ahead(buffers, kHasCome);
    backend().forward_finish(buffers, {.left = incoming});
    end(buffers);
    if (buffers.final_state != nullptr)
      backend().copy_empty_sequences(buffers.final_state, buffers.initial_state, false);
  });
}

void Passes::apply(const BackwardBuffers &buffers, const float *incoming, lasp_stream stream) {
  if (plan_.ranges.nranks() == 1) {
    BackwardBuffers whole = buffers;
    whole.staged = false;
    return backward(whole, stream);
  }
  run({"lasp backward apply", stream, false}, [&] {
    backend().require_stage(buffers);
    begin(buffers);
    if (buffers.carry != nullptr) {
      backend().backward_resume(buffers);
    } else {
      backend().backward_states(buffers, {}, {});
    }
    backend().backward_ahead(buffers, kHasCome);
    backend().backward_finish(buffers, {.right = incoming});
    end(buffers);
    if (buffers.d_initial_state != nullptr)
      backend().copy_empty_sequences(buffers.d_initial_state, buffers.d_final_state,
                                     buffers.adds(LASP_ADD_D_INITIAL_STATE));
  });
}

void Passes::compose_maps(void *to, const void *later, const void *earlier, lasp_stream stream) {
  run({"lasp maps compose", stream, false}, [&] {
    const MapLayout &layout = plan_.stages.layout;
    const AffineMapView view = layout.view(to), second = layout.view(later);
    backend().compose(stream, view, {&second, 1}, layout.view(earlier), 0, layout.map.slices());
    clear(static_cast<std::byte *>(to) + layout.used, layout.bytes - layout.used);
  });
}

// As the schedule all-gather folds them (exchange/schedule.cpp): the first map's state, and one map after the other
// on it.
void Passes::fold_maps(float *incoming, const void *maps, const ExchangePlan &scan, int32_t before,
                       lasp_stream stream) {
  const MapLayout &layout = plan_.stages.layout;
  if (before == 0) return clear(incoming, layout.state_bytes());
  const auto map_at = [&](int32_t position) {
    const int32_t map = plan_.stages.map_of[static_cast<size_t>(scan.place_of(position))];
    return layout.view(static_cast<const std::byte *>(maps) + static_cast<uint64_t>(map) * layout.bytes);
  };
  AffineMapView earlier = map_at(0);
  const AffineMapView to{incoming, nullptr};
  const auto most = static_cast<int32_t>(backend().most_composed());
  int32_t next = 1;
  do {
    later_.clear();
    for (; next < before && static_cast<int32_t>(later_.size()) < most; ++next) later_.push_back(map_at(next));
    backend().compose(stream, to, later_, earlier, 0, layout.map.slices());
    earlier = to;
  } while (next < before);
}

void Passes::apply_maps(float *incoming, const void *maps, Pass pass, lasp_stream stream) {
  run({"lasp maps apply", stream, false}, [&] {
    const ExchangePlan &scan = plan_.scan(pass);
    const MapLayout &layout = plan_.stages.layout;
    for (int32_t run = 0; run < plan_.stages.most_runs; ++run, incoming += layout.map.state_floats()) {
      if (run < plan_.runs()) {
        fold_maps(incoming, maps, scan, scan.place_of(plan_.ranges.position_of(plan_.rank, run)), stream);
      } else {
        clear(incoming, layout.state_bytes());
      }
    }
  });
}

}  // namespace lasp
