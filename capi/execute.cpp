// lasp_forward, lasp_backward, lasp_step: check every buffer, then run.
#include "buffers.h"
#include "handles.h"
#include "structs.h"

using namespace lasp;

namespace {

// Bytes that each tensor of a problem spans on this rank.
struct Spans {
  explicit Spans(const Problem &p) {
    const int64_t e = size_of(p.dtype);
    const auto bytes = [&](const Layout &layout, int64_t heads, int64_t dim, int64_t size) {
      return layout.extent(p.batch, p.tokens, heads, dim) * size;
    };
    element = e;
    q = bytes(p.q, p.heads_q, p.head_dim_k, e);
    k = bytes(p.k, p.heads_k, p.head_dim_k, e);
    v = bytes(p.v, p.heads_v, p.head_dim_v, e);
    o = bytes(p.o, p.heads, p.head_dim_v, e);
    dq = bytes(p.dq, p.heads_q, p.head_dim_k, e);
    dk = bytes(p.dk, p.heads_k, p.head_dim_k, e);
    dv = bytes(p.dv, p.heads_v, p.head_dim_v, e);
    d_o = bytes(p.d_o, p.heads, p.head_dim_v, e);
    states = p.num_sequences * p.heads * p.state_size() * 4;
    decay_element = size_of(p.decay_dtype);
    const int64_t dim = p.decay == Decay::kChannel ? p.head_dim_k : 1;
    if (p.decay == Decay::kHead) {
      decay = d_decay = int64_t{p.heads} * 4;
    } else if (p.decay != Decay::kNone) {
      decay = bytes(p.decay_layout, p.heads, dim, decay_element);
      d_decay = bytes(p.d_decay_layout, p.heads, dim, decay_element);
    }
  }
  int64_t q, k, v, o, dq, dk, dv, d_o, states, decay = 0, d_decay = 0;
  int64_t element, decay_element;
};

template <class Args>
struct Inputs {
  const void *q, *k, *v, *decay;
};

// The inputs that all three calls share.
template <class Args>
Inputs<Args> check_inputs(BufferCheck &check, const Args &a, const Problem &p, const Spans &s) {
  Inputs<Args> in;
  in.q = check.input("q", a.q, s.q, s.element);
  in.k = check.input("k", a.k, s.k, s.element);
  in.v = check.input("v", a.v, s.v, s.element);
  if (p.decay == Decay::kNone) check.absent("decay", a.decay.data, "the plan's decay is LASP_DECAY_NONE");
  in.decay = check.input("decay", a.decay, s.decay, s.decay_element);
  check.absent("beta", a.beta.data, "the plan's write is not LASP_WRITE_DELTA");
  return in;
}

}  // namespace

lasp_status lasp_forward_args_init(lasp_forward_args *args, size_t size) {
  return guarded([&] {
    const lasp_forward_args macro = LASP_FORWARD_ARGS_INIT;
    init_struct(args, size, macro, "lasp_forward_args");
  });
}

lasp_status lasp_backward_args_init(lasp_backward_args *args, size_t size) {
  return guarded([&] {
    const lasp_backward_args macro = LASP_BACKWARD_ARGS_INIT;
    init_struct(args, size, macro, "lasp_backward_args");
  });
}

lasp_status lasp_step_args_init(lasp_step_args *args, size_t size) {
  return guarded([&] {
    const lasp_step_args macro = LASP_STEP_ARGS_INIT;
    init_struct(args, size, macro, "lasp_step_args");
  });
}

lasp_status lasp_forward(lasp_plan *plan, const lasp_forward_args *args, lasp_stream stream) {
  return guarded([&] {
    lasp_plan &handle = live(plan, "plan");
    const lasp_forward_args a = read_struct(args, "args");
    require_stream(handle, stream);
    Plan &engine = handle.engine;
    const Problem &p = engine.problem();
    const lasp_plan_info &info = engine.info();
    const Spans s(p);
    BufferCheck check;
    const auto in = check_inputs(check, a, p, s);
    ForwardBuffers b{};
    b.q = in.q;
    b.k = in.k;
    b.v = in.v;
    b.decay = in.decay;
    b.initial_state =
        static_cast<const float *>(check.optional_input("initial_state", a.initial_state, s.states, 4));
    b.o = check.output("o", a.o, s.o, s.element);
    b.final_state = static_cast<float *>(p.broadcast_final_state
                                             ? check.output("final_state", a.final_state, s.states, 4)
                                             : check.optional_output("final_state", a.final_state, s.states, 4));
    if (!p.backward) check.absent("state_cache", a.state_cache.data, "the plan was made with backward = 0");
    b.state_cache =
        check.output("state_cache", a.state_cache, int64_t(info.state_cache_bytes), int64_t(info.alignment));
    b.workspace =
        check.output("workspace", a.workspace, int64_t(info.workspace_forward_bytes), int64_t(info.alignment));
    check.finish();
    if (a.reuse_state_cache != 0 && a.reuse_state_cache != 1)
      throw fail(LASP_ERROR_INVALID_ARGUMENT, "reuse_state_cache = %d: must be 0 or 1", a.reuse_state_cache);
    if (a.reserved != 0) throw fail(LASP_ERROR_INVALID_ARGUMENT, "args.reserved = %d: must be 0", a.reserved);
    if (a.reuse_state_cache == 1 && !p.backward)
      throw fail(LASP_ERROR_INVALID_ARGUMENT, "reuse_state_cache = 1: the plan was made with backward = 0");
    const InUse in_use(handle.context->comm->engine);
    handle.context->comm->engine.require_usable();
    collective(handle.context->comm->engine, [&] { engine.forward(b, a.reuse_state_cache == 1, stream); });
  });
}

lasp_status lasp_backward(lasp_plan *plan, const lasp_backward_args *args, lasp_stream stream) {
  return guarded([&] {
    lasp_plan &handle = live(plan, "plan");
    const lasp_backward_args a = read_struct(args, "args");
    require_stream(handle, stream);
    Plan &engine = handle.engine;
    const Problem &p = engine.problem();
    const lasp_plan_info &info = engine.info();
    if (!p.backward) throw fail(LASP_ERROR_INVALID_ARGUMENT, "plan: it was made with backward = 0");
    const Spans s(p);
    BufferCheck check;
    const auto in = check_inputs(check, a, p, s);
    BackwardBuffers b{};
    b.q = in.q;
    b.k = in.k;
    b.v = in.v;
    b.decay = in.decay;
    b.initial_state =
        static_cast<const float *>(check.optional_input("initial_state", a.initial_state, s.states, 4));
    b.d_o = check.input("d_o", a.d_o, s.d_o, s.element);
    b.d_final_state =
        static_cast<const float *>(check.optional_input("d_final_state", a.d_final_state, s.states, 4));
    b.state_cache =
        check.input("state_cache", a.state_cache, int64_t(info.state_cache_bytes), int64_t(info.alignment));
    b.dq = check.output("dq", a.dq, s.dq, s.element);
    b.dk = check.output("dk", a.dk, s.dk, s.element);
    b.dv = check.output("dv", a.dv, s.dv, s.element);
    if (p.decay == Decay::kNone) check.absent("d_decay", a.d_decay.data, "the plan's decay is LASP_DECAY_NONE");
    b.d_decay = check.optional_output("d_decay", a.d_decay, s.d_decay, s.decay_element);
    check.absent("d_beta", a.d_beta.data, "the plan's write is not LASP_WRITE_DELTA");
    b.d_initial_state =
        static_cast<float *>(check.optional_output("d_initial_state", a.d_initial_state, s.states, 4));
    b.workspace =
        check.output("workspace", a.workspace, int64_t(info.workspace_backward_bytes), int64_t(info.alignment));
    check.finish();
    const InUse in_use(handle.context->comm->engine);
    handle.context->comm->engine.require_usable();
    collective(handle.context->comm->engine, [&] { engine.backward(b, stream); });
  });
}

lasp_status lasp_step(lasp_plan *plan, const lasp_step_args *args, lasp_stream stream) {
  return guarded([&] {
    lasp_plan &handle = live(plan, "plan");
    const lasp_step_args a = read_struct(args, "args");
    require_stream(handle, stream);
    Plan &engine = handle.engine;
    const Problem &p = engine.problem();
    if (engine.info().nranks > 1)
      throw fail(LASP_ERROR_INVALID_ARGUMENT, "plan: step needs a plan on a group of one, this one has %d ranks",
                 engine.info().nranks);
    if (p.bidirectional) throw fail(LASP_ERROR_INVALID_ARGUMENT, "plan: step needs mask = LASP_MASK_CAUSAL");
    const Spans s(p);
    BufferCheck check;
    const auto in = check_inputs(check, a, p, s);
    StepBuffers b{};
    b.q = in.q;
    b.k = in.k;
    b.v = in.v;
    b.decay = in.decay;
    b.state = static_cast<float *>(check.output("state", a.state, s.states, 4));
    b.o = check.output("o", a.o, s.o, s.element);
    check.finish();
    const InUse in_use(handle.context->comm->engine);
    handle.context->comm->engine.require_usable();
    engine.step(b, stream);
  });
}
