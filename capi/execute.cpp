// lasp_forward, lasp_backward, lasp_step: check every buffer, then run.
#include "execute.h"

#include "core/names.h"
#include "engine/value_check.h"
#include "handles.h"
#include "packing.h"
#include "structs.h"

using namespace lasp;

namespace {

// What each tensor of a problem occupies on this rank.
struct Extents {
  explicit Extents(const Problem &p) {
    const auto tensor = [&](const Layout &layout, int64_t heads, int64_t dim, DType type) {
      return Extent{layout, p.batch, p.tokens, heads, dim, size_of(type)};
    };
    q = tensor(p.q, p.heads_q, p.head_dim_k, p.dtype);
    k = tensor(p.k, p.heads_k, p.head_dim_k, p.dtype);
    v = tensor(p.v, p.heads_v, p.head_dim_v, p.dtype);
    o = tensor(p.o, p.heads, p.head_dim_v, p.dtype);
    dq = tensor(p.dq, p.heads_q, p.head_dim_k, p.dq_dtype);
    dk = tensor(p.dk, p.heads_k, p.head_dim_k, p.dk_dtype);
    dv = tensor(p.dv, p.heads_v, p.head_dim_v, p.dv_dtype);
    d_o = tensor(p.d_o, p.heads, p.head_dim_v, p.dtype);
    if (p.delta) {
      beta = tensor(p.beta_layout, p.heads, 1, p.beta_dtype);
      d_beta = tensor(p.d_beta_layout, p.heads, 1, p.d_beta_dtype);
    }
    states = Extent::floats(p.num_sequences * p.heads * p.state_size());
    if (p.decay == Decay::kHead) {
      decay = d_decay = Extent::floats(p.heads);
    } else if (p.decay != Decay::kNone) {
      const int64_t dim = p.decay == Decay::kChannel ? p.head_dim_k : 1;
      decay = tensor(p.decay_layout, p.heads, dim, p.decay_dtype);
      d_decay = tensor(p.d_decay_layout, p.heads, dim, p.d_decay_dtype);
    }
  }

  Extent q, k, v, o, dq, dk, dv, d_o, states, decay, d_decay, beta, d_beta;
};

const float *floats(const void *data) { return static_cast<const float *>(data); }
float *floats(void *data) { return static_cast<float *>(data); }

// The inputs that all three calls share; where only some are read, which of them.
struct Reads {
  bool q = true, k = true, v = true;
};
template <class Buffers, class Args>
void check_inputs(BufferCheck &check, Buffers &b, const Args &a, const Problem &p, const Extents &e,
                  const Reads &reads = {}) {
  b.q = check.input_if(reads.q, "q", a.q, e.q);
  b.k = check.input_if(reads.k, "k", a.k, e.k);
  b.v = check.input_if(reads.v, "v", a.v, e.v);
  if (p.decay == Decay::kNone) check.absent("decay", a.decay.data, "the plan's decay is LASP_DECAY_NONE");
  b.decay = check.input("decay", a.decay, e.decay);
  if (!p.delta) check.absent("beta", a.beta.data, "the plan's write is not LASP_WRITE_DELTA");
  b.beta = check.input("beta", a.beta, e.beta);
}

// Null where the plan's stages hand nothing on, too.
void *check_carry(BufferCheck &check, const lasp_buffer &carry, const lasp_plan_info &info, uint64_t bytes) {
  if (carry.data == nullptr) return nullptr;
  void *const data = check.block_output("carry", carry, info, bytes);
  return bytes > 0 ? data : nullptr;
}

// What a stage has beside the pass's buffers, for args of either direction.
template <class Buffers, class Args>
StageBuffers check_stage(BufferCheck &check, Buffers &b, const Args &a, const Plan &plan, Stage stage,
                         uint64_t carry_bytes) {
  const lasp_plan_info &info = plan.info();
  StageBuffers s;
  if (stage == Stage::kSummarize) {
    s.map = check.block_output("maps", a.maps, info, static_cast<uint64_t>(info.num_runs) * info.map_bytes);
    check.absent("incoming", a.incoming.data, "summarize makes maps only");
    b.carry = check_carry(check, a.carry, info, carry_bytes);
    return s;
  }
  const bool whole = stage == Stage::kWhole;
  check.absent("maps", a.maps.data, whole ? "a whole pass has no stages" : "apply takes the state that came in");
  if (whole) {
    check.absent("incoming", a.incoming.data, "a whole pass has no stages");
    check.absent("carry", a.carry.data, "a whole pass has no stages");
    return s;
  }
  const Problem &p = plan.problem();
  const Extent states = Extent::floats(info.num_runs * p.map_rows() * p.heads * p.state_size());
  s.incoming = floats(check.optional_input("incoming", a.incoming, states));
  b.carry = check_carry(check, a.carry, info, carry_bytes);
  return s;
}

void check_add(const lasp_backward_args &a, const Problem &p, bool outputs) {
  constexpr int32_t kKnown =
      LASP_ADD_DQ | LASP_ADD_DK | LASP_ADD_DV | LASP_ADD_D_DECAY | LASP_ADD_D_BETA | LASP_ADD_D_INITIAL_STATE;
  if ((a.add & ~kKnown) != 0)
    throw fail(LASP_ERROR_INVALID_ARGUMENT, "add = %d: holds other bits than those of LASP_ADD_*", a.add);
  // A rank without tokens has no memory for what has an element per token.
  const auto need = [&](int32_t bit, const lasp_buffer &buffer, bool of_tokens, const char *what) {
    if (outputs && (a.add & bit) != 0 && buffer.data == nullptr && (p.tokens > 0 || !of_tokens))
      throw fail(LASP_ERROR_INVALID_ARGUMENT, "add = %d: %s is absent", a.add, what);
  };
  need(LASP_ADD_D_DECAY, a.d_decay, p.decay != Decay::kHead, "LASP_ADD_D_DECAY, but d_decay");
  need(LASP_ADD_D_BETA, a.d_beta, true, "LASP_ADD_D_BETA, but d_beta");
  need(LASP_ADD_D_INITIAL_STATE, a.d_initial_state, false, "LASP_ADD_D_INITIAL_STATE, but d_initial_state");
  if (a.reserved != 0) throw fail(LASP_ERROR_INVALID_ARGUMENT, "args.reserved = %d: must be 0", a.reserved);
}

}  // namespace

namespace lasp {

ForwardBuffers check_forward(const lasp_forward_args &a, const Plan &plan, Stage stage, StageBuffers *of_stage) {
  const Problem &p = plan.problem();
  const lasp_plan_info &info = plan.info();
  const bool outputs = stage != Stage::kSummarize;
  if (a.reuse_state_cache != 0 && a.reuse_state_cache != 1)
    throw fail(LASP_ERROR_INVALID_ARGUMENT, "reuse_state_cache = %d: must be 0 or 1", a.reuse_state_cache);
  if (a.reserved != 0) throw fail(LASP_ERROR_INVALID_ARGUMENT, "args.reserved = %d: must be 0", a.reserved);
  if (a.reuse_state_cache == 1 && !p.backward)
    throw fail(LASP_ERROR_INVALID_ARGUMENT, "reuse_state_cache = 1: the plan was made with backward = 0");
  const Extents e(p);
  BufferCheck check;
  ForwardBuffers b{};
  check_inputs(check, b, a, p, e, {.q = outputs});
  b.initial_state = floats(check.optional_input("initial_state", a.initial_state, e.states));
  b.o = check.output_if(outputs, "o", a.o, e.o);
  const bool broadcasts = p.broadcast_final_state && stage == Stage::kWhole;
  b.final_state = floats(check.output_if(broadcasts, "final_state", a.final_state, e.states));
  if (!p.backward) check.absent("state_cache", a.state_cache.data, "the plan was made with backward = 0");
  b.state_cache = check.block_output("state_cache", a.state_cache, info, info.state_cache_bytes);
  b.workspace = check.block_output("workspace", a.workspace, info, info.workspace_forward_bytes);
  b.packing = check_packing(check, a.packing, plan);
  const StageBuffers s = check_stage(check, b, a, plan, stage, info.carry_forward_bytes);
  if (of_stage != nullptr) *of_stage = s;
  check.finish();
  if (!outputs) b.final_state = nullptr;  // apply writes it
  return b;
}

BackwardBuffers check_backward(const lasp_backward_args &a, const Plan &plan, Stage stage, StageBuffers *of_stage) {
  const Problem &p = plan.problem();
  const lasp_plan_info &info = plan.info();
  const bool outputs = stage != Stage::kSummarize;
  if (!p.backward) throw fail(LASP_ERROR_INVALID_ARGUMENT, "plan: it was made with backward = 0");
  check_add(a, p, outputs);
  const Extents e(p);
  BufferCheck check;
  BackwardBuffers b{};
  b.staged = stage != Stage::kWhole;
  // A dense transition has been found by the forward pass, and what a token adds to a gradient depends on keys.
  check_inputs(check, b, a, p, e, {.k = outputs || p.delta, .v = outputs});
  b.initial_state = floats(check.optional_input("initial_state", a.initial_state, e.states));
  b.d_o = check.input("d_o", a.d_o, e.d_o);
  b.d_final_state = floats(check.optional_input("d_final_state", a.d_final_state, e.states));
  if (outputs || p.delta || a.state_cache.data != nullptr)
    b.state_cache = check.block_input("state_cache", a.state_cache, info, info.state_cache_bytes);
  b.dq = check.output_if(outputs, "dq", a.dq, e.dq);
  b.dk = check.output_if(outputs, "dk", a.dk, e.dk);
  b.dv = check.output_if(outputs, "dv", a.dv, e.dv);
  if (p.decay == Decay::kNone) check.absent("d_decay", a.d_decay.data, "the plan's decay is LASP_DECAY_NONE");
  b.d_decay = check.optional_output("d_decay", a.d_decay, e.d_decay);
  if (!p.delta) check.absent("d_beta", a.d_beta.data, "the plan's write is not LASP_WRITE_DELTA");
  b.d_beta = check.output_if(outputs, "d_beta", a.d_beta, e.d_beta);
  b.d_initial_state = floats(check.optional_output("d_initial_state", a.d_initial_state, e.states));
  // Stages send nothing, and so need no memory for it.
  const bool wide = stage == Stage::kWhole && (a.add & LASP_ADD_DV) != 0;
  b.workspace = check.block_output("workspace", a.workspace, info,
                                   wide ? info.workspace_add_bytes : info.workspace_backward_bytes);
  b.add = outputs ? a.add : 0;
  b.packing = check_packing(check, a.packing, plan);
  const StageBuffers s = check_stage(check, b, a, plan, stage, info.carry_backward_bytes);
  if (of_stage != nullptr) *of_stage = s;
  check.finish();
  if (!outputs) b.d_initial_state = nullptr;  // apply writes it
  return b;
}

}  // namespace lasp

namespace {

StepBuffers check_step(const lasp_step_args &a, const Problem &p) {
  if (p.ownership != LASP_OWN_CONTIGUOUS)
    throw fail(LASP_ERROR_UNSUPPORTED, "plan: step is not served with ownership = %s",
               ownership_name(p.ownership).c_str());
  if (p.packed)
    throw fail(
        LASP_ERROR_UNSUPPORTED,
        "plan: it was made with max_sequences = %lld, and step takes a plan of B rows, one for each sequence",
        static_cast<long long>(p.num_sequences));
  if (p.bidirectional) throw fail(LASP_ERROR_INVALID_ARGUMENT, "plan: step needs mask = LASP_MASK_CAUSAL");
  if (a.tokens < 0 || a.tokens > p.tokens)
    throw fail(LASP_ERROR_INVALID_ARGUMENT, "tokens = %lld: must be 0 to the plan's, %lld",
               static_cast<long long>(a.tokens), static_cast<long long>(p.tokens));
  Problem of_step = p;
  if (a.tokens > 0) of_step.tokens = a.tokens;
  const Extents e(of_step);
  BufferCheck check;
  StepBuffers b{};
  b.tokens = of_step.tokens;
  check_inputs(check, b, a, p, e);
  b.state = floats(check.output("state", a.state, e.states));
  b.o = check.output("o", a.o, e.o);
  check.finish();
  return b;
}

// A pass that exchanges needs a transport.
void require_transport(const Comm &comm, const char *stages) {
  if (comm.detached())
    throw fail(LASP_ERROR_UNSUPPORTED,
               "plan: its comm is detached and sends nothing; use %s, with a collective of your own between",
               stages);
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
    Comm &comm = handle.context->comm->engine;
    const InUse in_use(comm, "lasp_forward");
    comm.require_usable();
    bool others_wait = !comm.detached();
    collective(comm, others_wait, [&] {
      const lasp_forward_args a = read_struct(args, "args");
      if (a.reuse_state_cache == 1) others_wait = false;
      if (a.reuse_state_cache != 1) require_transport(comm, "lasp_forward_summarize and lasp_forward_apply");
      require_stream(handle, stream);
      const ForwardBuffers b = check_forward(a, handle.engine, Stage::kWhole, nullptr);
      handle.engine.passes().forward(b, a.reuse_state_cache == 1, stream);
      if (handle.context->engine.checks_values()) check_values(handle.engine, b, stream);
    });
  });
}

lasp_status lasp_backward(lasp_plan *plan, const lasp_backward_args *args, lasp_stream stream) {
  return guarded([&] {
    lasp_plan &handle = live(plan, "plan");
    Comm &comm = handle.context->comm->engine;
    const InUse in_use(comm, "lasp_backward");
    comm.require_usable();
    collective(comm, !comm.detached(), [&] {
      const lasp_backward_args a = read_struct(args, "args");
      require_transport(comm, "lasp_backward_summarize and lasp_backward_apply");
      require_stream(handle, stream);
      const BackwardBuffers b = check_backward(a, handle.engine, Stage::kWhole, nullptr);
      handle.engine.passes().backward(b, stream);
      if (handle.context->engine.checks_values()) check_values(handle.engine, b, stream);
    });
  });
}

lasp_status lasp_step(lasp_plan *plan, const lasp_step_args *args, lasp_stream stream) {
  return guarded([&] {
    lasp_plan &handle = live(plan, "plan");
    Comm &comm = handle.context->comm->engine;
    const InUse in_use(comm, "lasp_step");
    comm.require_usable();
    const lasp_step_args a = read_struct(args, "args");
    require_stream(handle, stream);
    const StepBuffers b = check_step(a, handle.engine.problem());
    handle.engine.passes().step(b, stream);
    if (handle.context->engine.checks_values()) check_values(handle.engine, b, stream);
  });
}
