// The stages of the passes, and the composition of maps: no call here talks to another rank.
#include "execute.h"

#include "engine/value_check.h"
#include "handles.h"
#include "structs.h"

using namespace lasp;

namespace {

// What is around each call: `body` gets the plan, which has stages.
template <class Body>
lasp_status stage_call(lasp_plan *plan, const char *call, lasp_stream stream, Body body) {
  return guarded([&] {
    lasp_plan &handle = live(plan, "plan");
    Comm &comm = handle.context->comm->engine;
    const InUse in_use(comm, call);
    comm.require_usable();
    require_stream(handle, stream);
    if (const char *why = handle.engine.map_layout().why_not)
      throw fail(LASP_ERROR_UNSUPPORTED, "plan: it has no stages; %s", why);
    body(handle.engine);
  });
}

// What a stage read and wrote.
template <class Buffers>
void look_through(const Plan &plan, const Buffers &b, lasp_stream stream) {
  if (plan.context().checks_values()) check_values(plan, b, stream);
}

lasp_maps_args read_maps_args(const lasp_maps_args *args) {
  const lasp_maps_args a = read_struct(args, "args");
  if (a.backward != 0 && a.backward != 1)
    throw fail(LASP_ERROR_INVALID_ARGUMENT, "args.backward = %d: must be 0 or 1", a.backward);
  if (a.reserved != 0) throw fail(LASP_ERROR_INVALID_ARGUMENT, "args.reserved = %d: must be 0", a.reserved);
  return a;
}

// `to` is one of the two, or meets neither.
const void *check_composed(const char *name, const lasp_const_buffer &from, const lasp_buffer &to,
                           const lasp_plan_info &info) {
  BufferCheck check;
  check.block_input(name, from, info, info.map_bytes);
  if (from.data == to.data) return from.data;
  check.block_output("to", to, info, info.map_bytes);
  check.finish();
  return from.data;
}

}  // namespace

lasp_status lasp_forward_summarize(lasp_plan *plan, const lasp_forward_args *args, lasp_stream stream) {
  return stage_call(plan, "lasp_forward_summarize", stream, [&](Plan &engine) {
    const lasp_forward_args a = read_struct(args, "args");
    if (a.reuse_state_cache == 1)
      throw fail(
          LASP_ERROR_INVALID_ARGUMENT,
          "reuse_state_cache = 1: outputs come from the cache alone, by lasp_forward_apply; no map is needed");
    StageBuffers stage;
    const ForwardBuffers b = check_forward(a, engine, Stage::kSummarize, &stage);
    engine.passes().summarize(b, stage.map, stream);
    look_through(engine, b, stream);
  });
}

lasp_status lasp_forward_apply(lasp_plan *plan, const lasp_forward_args *args, lasp_stream stream) {
  return stage_call(plan, "lasp_forward_apply", stream, [&](Plan &engine) {
    const lasp_forward_args a = read_struct(args, "args");
    StageBuffers stage;
    const ForwardBuffers b = check_forward(a, engine, Stage::kApply, &stage);
    if (a.reuse_state_cache == 1) {
      engine.passes().forward(b, true, stream);
    } else {
      engine.passes().apply(b, stage.incoming, stream);
    }
    look_through(engine, b, stream);
  });
}

lasp_status lasp_backward_summarize(lasp_plan *plan, const lasp_backward_args *args, lasp_stream stream) {
  return stage_call(plan, "lasp_backward_summarize", stream, [&](Plan &engine) {
    StageBuffers stage;
    const BackwardBuffers b = check_backward(read_struct(args, "args"), engine, Stage::kSummarize, &stage);
    engine.passes().summarize(b, stage.map, stream);
    look_through(engine, b, stream);
  });
}

lasp_status lasp_backward_apply(lasp_plan *plan, const lasp_backward_args *args, lasp_stream stream) {
  return stage_call(plan, "lasp_backward_apply", stream, [&](Plan &engine) {
    StageBuffers stage;
    const BackwardBuffers b = check_backward(read_struct(args, "args"), engine, Stage::kApply, &stage);
    engine.passes().apply(b, stage.incoming, stream);
    look_through(engine, b, stream);
  });
}

lasp_status lasp_maps_args_init(lasp_maps_args *args, size_t size) {
  return guarded([&] {
    const lasp_maps_args macro = LASP_MAPS_ARGS_INIT;
    init_struct(args, size, macro, "lasp_maps_args");
  });
}

lasp_status lasp_maps_compose(lasp_plan *plan, const lasp_maps_args *args, lasp_stream stream) {
  return stage_call(plan, "lasp_maps_compose", stream, [&](Plan &engine) {
    const lasp_maps_args a = read_maps_args(args);
    const lasp_plan_info &info = engine.info();
    BufferCheck check;
    check.absent("maps", a.maps.data, "compose takes later and earlier");
    check.absent("incoming", a.incoming.data, "compose writes to");
    void *const to = check.block_output("to", a.to, info, info.map_bytes);
    const void *const later = check_composed("later", a.later, a.to, info);
    const void *const earlier = check_composed("earlier", a.earlier, a.to, info);
    engine.passes().compose_maps(to, later, earlier, stream);
  });
}

lasp_status lasp_maps_apply(lasp_plan *plan, const lasp_maps_args *args, lasp_stream stream) {
  return stage_call(plan, "lasp_maps_apply", stream, [&](Plan &engine) {
    const lasp_maps_args a = read_maps_args(args);
    const lasp_plan_info &info = engine.info();
    BufferCheck check;
    check.absent("later", a.later.data, "apply takes maps");
    check.absent("earlier", a.earlier.data, "apply takes maps");
    check.absent("to", a.to.data, "apply writes incoming");
    const void *const maps = check.block_input("maps", a.maps, info,
                                               static_cast<uint64_t>(info.nranks * info.num_runs) * info.map_bytes);
    const Extent states = Extent::floats(info.num_runs * engine.map_layout().map.state_floats());
    auto *const incoming = static_cast<float *>(check.output("incoming", a.incoming, states));
    check.finish();
    engine.passes().apply_maps(incoming, maps, a.backward == 1 ? Pass::kBackward : Pass::kForward, stream);
  });
}
