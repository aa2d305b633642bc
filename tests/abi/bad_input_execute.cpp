// Wrong calls of lasp_forward, lasp_backward and lasp_step, and wrong uses of their plans and threads.
#include <thread>

#include "bad_input.h"

namespace {

template <class Change>
lasp_status forward(Rig &rig, Change change) {
  lasp_forward_args args = rig.forward_args();
  change(args, rig);
  return lasp_forward(rig.plan, &args, nullptr);
}
template <class Change>
lasp_status backward(Rig &rig, Change change) {
  lasp_backward_args args = rig.backward_args();
  change(args, rig);
  return lasp_backward(rig.plan, &args, nullptr);
}
template <class Change>
lasp_status step(Rig &rig, Change change) {
  lasp_step_args args = rig.step_args();
  change(args, rig);
  return lasp_step(rig.plan, &args, nullptr);
}

template <class Buffer>
void misalign(Buffer &buffer, size_t by) {
  buffer.data = const_cast<char *>(static_cast<const char *>(buffer.data)) + by;
}

// A second plan in the rig's context, for one call.
template <class Change, class Call>
lasp_status with_plan(Rig &rig, Change change, Call call) {
  lasp_problem problem = Rig::valid_problem();
  change(problem);
  lasp_plan *plan = nullptr;
  Rig::must(lasp_plan_create(rig.context, &problem, &plan));
  const lasp_status status = call(plan);
  Rig::must(lasp_plan_destroy(plan));
  return status;
}

// So many bytes into a buffer.
void *in(const void *data, size_t bytes) { return static_cast<char *>(const_cast<void *>(data)) + bytes; }

// Forward on a rank without tokens, whose tensors are empty.
template <class Change>
lasp_status without_tokens(Rig &rig, Change change) {
  return with_plan(
      rig, [](lasp_problem &p) { p.tokens = 0; },
      [&](lasp_plan *plan) {
        lasp_plan_info info = LASP_PLAN_INFO_INIT;
        Rig::must(lasp_plan_get_info(plan, &info));
        if (info.workspace_forward_bytes + info.state_cache_bytes > 0) throw std::logic_error("memory is needed");
        lasp_forward_args args = rig.forward_args();
        change(args);
        return lasp_forward(plan, &args, nullptr);
      });
}

// Backward likewise: what is not of tokens is not empty.
template <class Change>
lasp_status back_without_tokens(Rig &rig, Change change) {
  return with_plan(
      rig, [](lasp_problem &p) { p.tokens = 0; },
      [&](lasp_plan *plan) {
        lasp_backward_args args = rig.backward_args();
        change(args);
        return lasp_backward(plan, &args, nullptr);
      });
}

#define FORWARD(change) \
  [](Rig &r) { return forward(r, [](lasp_forward_args &a, [[maybe_unused]] Rig &rig) { change; }); }
#define BACKWARD(change) \
  [](Rig &r) { return backward(r, [](lasp_backward_args &a, [[maybe_unused]] Rig &rig) { change; }); }
#define STEP(change) [](Rig &r) { return step(r, [](lasp_step_args &a, [[maybe_unused]] Rig &rig) { change; }); }

constexpr lasp_status kSmall = LASP_ERROR_BUFFER_TOO_SMALL, kMisaligned = LASP_ERROR_MISALIGNED;
constexpr lasp_status kStruct = LASP_ERROR_INVALID_STRUCT, kHandle = LASP_ERROR_INVALID_HANDLE;

const WrongCall kForward[] = {
    {"NullPlan", kInvalid, "plan",
     [](Rig &r) {
       const lasp_forward_args args = r.forward_args();
       return lasp_forward(nullptr, &args, nullptr);
     }},
    {"WrongHandle", kHandle, "plan",
     [](Rig &r) {
       const lasp_forward_args args = r.forward_args();
       return lasp_forward(reinterpret_cast<lasp_plan *>(r.context), &args, nullptr);
     }},
    {"NullArgs", kInvalid, "args", [](Rig &r) { return lasp_forward(r.plan, nullptr, nullptr); }},
    {"InitNull", kInvalid, "args", [](Rig &) { return lasp_forward_args_init(nullptr, 8); }},
    {"StructSize", kStruct, "args|size", FORWARD(a.size = 6)},
    {"StructSizeInAField", kStruct, "args.size = 12", FORWARD(a.size = 12)},
    {"StructSizeTooSmall", kStruct, "args.size = 24", FORWARD(a.size = 24)},
    {"StructSizeOdd", kStruct, "args.size", FORWARD(a.size += 4)},
    {"Stream", kInvalid, "stream",
     [](Rig &r) {
       const lasp_forward_args args = r.forward_args();
       return lasp_forward(r.plan, &args, reinterpret_cast<lasp_stream>(&r));
     }},
    {"QAbsent", kInvalid, "\\bq\\b", FORWARD((a.q = {nullptr, 0}))},
    {"QNullWithBytes", kInvalid, "\\bq\\b", FORWARD(a.q.data = nullptr)},
    {"KAbsent", kInvalid, "\\bk\\b", FORWARD((a.k = {nullptr, 0}))},
    {"VAbsent", kInvalid, "\\bv\\b", FORWARD((a.v = {nullptr, 0}))},
    {"DecayAbsent", kInvalid, "\\bdecay\\b", FORWARD((a.decay = {nullptr, 0}))},
    {"OAbsent", kInvalid, "\\bo\\b", FORWARD((a.o = {nullptr, 0}))},
    {"CacheAbsent", kInvalid, "state_cache", FORWARD((a.state_cache = {nullptr, 0}))},
    {"WorkspaceAbsent", kInvalid, "workspace", FORWARD((a.workspace = {nullptr, 0}))},
    {"BetaWithoutDelta", kInvalid, "beta", FORWARD(a.beta = rig.decay)},
    {"QTooSmall", kSmall, "\\bq\\b", FORWARD(a.q.bytes -= 1)},
    {"KTooSmall", kSmall, "\\bk\\b", FORWARD(a.k.bytes = 8)},
    {"VTooSmall", kSmall, "\\bv\\b", FORWARD(a.v.bytes -= 4)},
    {"DecayTooSmall", kSmall, "\\bdecay\\b", FORWARD(a.decay.bytes -= 1)},
    {"OTooSmall", kSmall, "\\bo\\b", FORWARD(a.o.bytes -= 1)},
    {"InitialStateTooSmall", kSmall, "initial_state", FORWARD(a.initial_state.bytes -= 4)},
    {"FinalStateTooSmall", kSmall, "final_state", FORWARD(a.final_state.bytes -= 4)},
    {"CacheTooSmall", kSmall, "state_cache", FORWARD(a.state_cache.bytes -= 1)},
    {"WorkspaceTooSmall", kSmall, "workspace", FORWARD(a.workspace.bytes -= 1)},
    {"QMisaligned", kMisaligned, "\\bq\\b", FORWARD(misalign(a.q, 2))},
    {"VMisaligned", kMisaligned, "\\bv\\b", FORWARD(misalign(a.v, 1))},
    {"DecayMisaligned", kMisaligned, "\\bdecay\\b", FORWARD(misalign(a.decay, 2))},
    {"OMisaligned", kMisaligned, "\\bo\\b", FORWARD(misalign(a.o, 2))},
    {"InitialStateMisaligned", kMisaligned, "initial_state", FORWARD(misalign(a.initial_state, 2))},
    {"FinalStateMisaligned", kMisaligned, "final_state", FORWARD(misalign(a.final_state, 1))},
    {"CacheMisaligned", kMisaligned, "state_cache", FORWARD(misalign(a.state_cache, 4))},
    {"WorkspaceMisaligned", kMisaligned, "workspace", FORWARD(misalign(a.workspace, 8))},
    {"OutputIsInput", kInvalid, "\\b[ov]\\b", FORWARD((a.o = {const_cast<void *>(a.v.data), a.v.bytes}))},
    {"OutputInsideInput", kInvalid, "\\b(o|q)\\b", FORWARD((a.q = {a.o.data, a.q.bytes}))},
    {"TwoOutputs", kInvalid, "final_state|\\bo\\b", FORWARD(a.final_state.data = a.o.data)},
    {"StatesShared", kInvalid, "final_state|initial_state", FORWARD(a.initial_state.data = a.final_state.data)},
    {"CacheIsWorkspace", kInvalid, "state_cache|workspace",
     FORWARD(auto &larger = a.workspace.bytes > a.state_cache.bytes ? a.workspace : a.state_cache;
             a.workspace.data = a.state_cache.data = larger.data)},
    {"OutputReachesIntoInput", kInvalid, "v and o share memory", FORWARD(a.o.data = in(a.v.data, 16))},
    {"InputReachesIntoOutput", kInvalid, "q and o share memory", FORWARD(a.q.data = in(a.o.data, 16))},
    {"DecayInsideO", kInvalid, "decay and o share memory", FORWARD(a.decay.data = in(a.o.data, 64))},
    {"StateInsideO", kInvalid, "o and final_state share memory", FORWARD(a.final_state.data = in(a.o.data, 128))},
    {"OInsideWorkspace", kInvalid, "o and workspace share memory", FORWARD(a.o.data = in(a.workspace.data, 4))},
    {"QInsideWorkspace", kInvalid, "q and workspace share memory", FORWARD(a.q.data = in(a.workspace.data, 4))},
    {"WorkspaceInsideCache", kInvalid, "state_cache and workspace share memory",
     FORWARD(a.workspace.data = in(a.state_cache.data, 64))},
    {"InitialStateInsideCache", kInvalid, "initial_state and state_cache share memory",
     FORWARD(a.initial_state.data = in(a.state_cache.data, 64))},
    {"Reuse", kInvalid, "reuse_state_cache", FORWARD(a.reuse_state_cache = 2)},
    {"Reserved", kInvalid, "reserved", FORWARD(a.reserved = 1)},
    {"ReuseWithoutBackward", kInvalid, "reuse_state_cache|state_cache",
     [](Rig &r) {
       return with_plan(
           r, [](lasp_problem &p) { p.backward = 0; },
           [&](lasp_plan *plan) {
             lasp_forward_args args = r.forward_args();
             args.reuse_state_cache = 1;
             return lasp_forward(plan, &args, nullptr);
           });
     }},
    {"DecayWithoutDecay", kInvalid, "\\bdecay\\b",
     [](Rig &r) {
       return with_plan(
           r, [](lasp_problem &p) { p.decay = LASP_DECAY_NONE; },
           [&](lasp_plan *plan) {
             const lasp_forward_args args = r.forward_args();
             return lasp_forward(plan, &args, nullptr);
           });
     }},
    // Nothing is needed of these, today: the next plan would trip over it.
    {"EmptyTensorMisaligned", kMisaligned, "\\bq\\b",
     [](Rig &r) { return without_tokens(r, [](lasp_forward_args &a) { misalign(a.q, 2); }); }},
    {"EmptyCacheMisaligned", kMisaligned, "state_cache",
     [](Rig &r) { return without_tokens(r, [](lasp_forward_args &a) { misalign(a.state_cache, 8); }); }},
    {"EmptyWorkspaceMisaligned", kMisaligned, "workspace",
     [](Rig &r) { return without_tokens(r, [](lasp_forward_args &a) { misalign(a.workspace, 8); }); }},
};

const WrongCall kBackward[] = {
    {"NullPlan", kInvalid, "plan",
     [](Rig &r) {
       const lasp_backward_args args = r.backward_args();
       return lasp_backward(nullptr, &args, nullptr);
     }},
    {"NullArgs", kInvalid, "args", [](Rig &r) { return lasp_backward(r.plan, nullptr, nullptr); }},
    {"InitNull", kInvalid, "args", [](Rig &) { return lasp_backward_args_init(nullptr, 8); }},
    {"StructSize", kStruct, "args|size", BACKWARD(a.size = 0)},
    {"Stream", kInvalid, "stream",
     [](Rig &r) {
       const lasp_backward_args args = r.backward_args();
       return lasp_backward(r.plan, &args, reinterpret_cast<lasp_stream>(&r));
     }},
    {"ForwardOnlyPlan", kInvalid, "backward",
     [](Rig &r) {
       return with_plan(
           r, [](lasp_problem &p) { p.backward = 0; },
           [&](lasp_plan *plan) {
             const lasp_backward_args args = r.backward_args();
             return lasp_backward(plan, &args, nullptr);
           });
     }},
    {"QAbsent", kInvalid, "\\bq\\b", BACKWARD((a.q = {nullptr, 0}))},
    {"DecayAbsent", kInvalid, "\\bdecay\\b", BACKWARD((a.decay = {nullptr, 0}))},
    {"DoAbsent", kInvalid, "\\bd_o\\b", BACKWARD((a.d_o = {nullptr, 0}))},
    {"CacheAbsent", kInvalid, "state_cache", BACKWARD((a.state_cache = {nullptr, 0}))},
    {"DqAbsent", kInvalid, "\\bdq\\b", BACKWARD((a.dq = {nullptr, 0}))},
    {"DkAbsent", kInvalid, "\\bdk\\b", BACKWARD((a.dk = {nullptr, 0}))},
    {"DvAbsent", kInvalid, "\\bdv\\b", BACKWARD((a.dv = {nullptr, 0}))},
    {"WorkspaceAbsent", kInvalid, "workspace", BACKWARD((a.workspace = {nullptr, 0}))},
    {"BetaWithoutDelta", kInvalid, "beta", BACKWARD(a.beta = rig.decay)},
    {"DBetaWithoutDelta", kInvalid, "d_beta", BACKWARD((a.d_beta = rig.o))},
    {"DoTooSmall", kSmall, "\\bd_o\\b", BACKWARD(a.d_o.bytes -= 1)},
    {"DqTooSmall", kSmall, "\\bdq\\b", BACKWARD(a.dq.bytes -= 4)},
    {"DkTooSmall", kSmall, "\\bdk\\b", BACKWARD(a.dk.bytes = 1)},
    {"DDecayTooSmall", kSmall, "d_decay", BACKWARD(a.d_decay.bytes -= 4)},
    {"DInitialStateTooSmall", kSmall, "d_initial_state", BACKWARD(a.d_initial_state.bytes -= 4)},
    {"DFinalStateTooSmall", kSmall, "d_final_state", BACKWARD(a.d_final_state.bytes = 0)},
    {"CacheTooSmall", kSmall, "state_cache", BACKWARD(a.state_cache.bytes -= 1)},
    {"WorkspaceTooSmall", kSmall, "workspace", BACKWARD(a.workspace.bytes -= 1)},
    {"DvMisaligned", kMisaligned, "\\bdv\\b", BACKWARD(misalign(a.dv, 2))},
    {"DFinalStateMisaligned", kMisaligned, "d_final_state", BACKWARD(misalign(a.d_final_state, 2))},
    {"CacheMisaligned", kMisaligned, "state_cache", BACKWARD(misalign(a.state_cache, 16))},
    {"DqIsQ", kInvalid, "\\bd?q\\b", BACKWARD(a.dq.data = const_cast<void *>(a.q.data))},
    {"DvIsDo", kInvalid, "\\b(dv|d_o)\\b", BACKWARD(a.dv.data = const_cast<void *>(a.d_o.data))},
    {"TwoOutputs", kInvalid, "\\b(dq|dv)\\b", BACKWARD(a.dq.data = a.dv.data)},
    {"StructSizeInAField", kStruct, "args.size = 44", BACKWARD(a.size = 44)},
    {"DkReachesIntoDq", kInvalid, "dq and dk share memory", BACKWARD(a.dk.data = in(a.dq.data, 100))},
    {"DDecayInsideWorkspace", kInvalid, "d_decay and workspace share memory",
     BACKWARD(a.d_decay.data = in(a.workspace.data, 16))},
    {"DDecayInsideCache", kInvalid, "state_cache and d_decay share memory",
     BACKWARD(a.d_decay.data = in(a.state_cache.data, 16))},
    {"CacheInsideWorkspace", kInvalid, "state_cache and workspace share memory",
     BACKWARD(a.state_cache.data = in(a.workspace.data, 64))},
    {"DInitialStateInsideDv", kInvalid, "dv and d_initial_state share memory",
     BACKWARD(a.d_initial_state.data = in(a.dv.data, 256))},
};

const WrongCall kAdd[] = {
    {"Unknown", kInvalid, "add = 64: holds other bits", BACKWARD(a.add = 64)},
    {"Force", kInvalid, "add = 2147483647", BACKWARD(a.add = LASP_ADD_FORCE_INT32)},
    {"NoDBeta", kInvalid, "add = 16: LASP_ADD_D_BETA, but d_beta is absent", BACKWARD(a.add = LASP_ADD_D_BETA)},
    {"NoDDecay", kInvalid, "add = 9: LASP_ADD_D_DECAY, but d_decay is absent",
     BACKWARD((a.add = LASP_ADD_D_DECAY | LASP_ADD_DQ, a.d_decay = {nullptr, 0}))},
    {"NoDInitialState", kInvalid, "LASP_ADD_D_INITIAL_STATE, but d_initial_state is absent",
     BACKWARD((a.add = LASP_ADD_D_INITIAL_STATE, a.d_initial_state = {nullptr, 0}))},
    {"NoDInitialStateAndNoTokens", kInvalid, "LASP_ADD_D_INITIAL_STATE, but d_initial_state is absent",
     [](Rig &r) {
       return back_without_tokens(r, [](lasp_backward_args &a) {
         a.add = LASP_ADD_D_INITIAL_STATE, a.d_initial_state = {nullptr, 0};
       });
     }},
    {"Reserved", kInvalid, "args.reserved = 3: must be 0", BACKWARD(a.reserved = 3)},
};

const WrongCall kStep[] = {
    {"NullPlan", kInvalid, "plan",
     [](Rig &r) {
       const lasp_step_args args = r.step_args();
       return lasp_step(nullptr, &args, nullptr);
     }},
    {"NullArgs", kInvalid, "args", [](Rig &r) { return lasp_step(r.plan, nullptr, nullptr); }},
    {"TokensNegative", kInvalid, "tokens = -1: must be 0 to the plan's, 24", STEP(a.tokens = -1)},
    {"TokensBeyondThePlan", kInvalid, "tokens = 25: must be 0 to the plan's, 24", STEP(a.tokens = 25)},
    {"InitNull", kInvalid, "args", [](Rig &) { return lasp_step_args_init(nullptr, 8); }},
    {"StructSize", kStruct, "args|size", STEP(a.size = 7)},
    {"Stream", kInvalid, "stream",
     [](Rig &r) {
       const lasp_step_args args = r.step_args();
       return lasp_step(r.plan, &args, reinterpret_cast<lasp_stream>(&r));
     }},
    {"StateAbsent", kInvalid, "state", STEP((a.state = {nullptr, 0}))},
    {"OAbsent", kInvalid, "\\bo\\b", STEP((a.o = {nullptr, 0}))},
    {"KAbsent", kInvalid, "\\bk\\b", STEP((a.k = {nullptr, 0}))},
    {"StateTooSmall", kSmall, "state", STEP(a.state.bytes -= 4)},
    {"StateMisaligned", kMisaligned, "state", STEP(misalign(a.state, 2))},
    {"StateIsO", kInvalid, "state|\\bo\\b", STEP(a.state.data = a.o.data)},
    {"StateReachesIntoO", kInvalid, "state and o share memory", STEP(a.state.data = in(a.o.data, 64))},
    {"VReachesIntoState", kInvalid, "v and state share memory", STEP(a.v.data = in(a.state.data, 64))},
    {"BetaWithoutDelta", kInvalid, "beta", STEP(a.beta = rig.decay)},
    {"Bidirectional", kInvalid, "causal|mask|bidirectional|BIDIRECTIONAL",
     [](Rig &r) {
       return with_plan(
           r, [](lasp_problem &p) { p.decay = LASP_DECAY_NONE, p.mask = LASP_MASK_BIDIRECTIONAL; },
           [&](lasp_plan *plan) {
             lasp_step_args args = r.step_args();
             args.decay = {nullptr, 0};
             return lasp_step(plan, &args, nullptr);
           });
     }},
};

// Each row's last word: the plan has the delta write.
const WrongCall kDelta[] = {
    {"ForwardWithoutBeta", kInvalid, "beta is null: 192 bytes", FORWARD((a.beta = {nullptr, 0})), true},
    {"ForwardBetaTooSmall", kSmall, "beta holds 191 bytes: 192", FORWARD(a.beta.bytes -= 1), true},
    {"ForwardBetaMisaligned", kMisaligned, "beta at", FORWARD(misalign(a.beta, 2)), true},
    {"ForwardBetaInO", kInvalid, "beta and o share memory", FORWARD(a.beta.data = in(a.o.data, 4)), true},
    {"BackwardWithoutBeta", kInvalid, "\\bbeta is null", BACKWARD((a.beta = {nullptr, 0})), true},
    {"BackwardWithoutDBeta", kInvalid, "d_beta is null", BACKWARD((a.d_beta = {nullptr, 0})), true},
    {"BackwardDBetaTooSmall", kSmall, "d_beta holds 188 bytes", BACKWARD(a.d_beta.bytes -= 4), true},
    {"BackwardDBetaMisaligned", kMisaligned, "d_beta at", BACKWARD(misalign(a.d_beta, 2)), true},
    {"BackwardDBetaIsBeta", kInvalid, "beta and d_beta share memory",
     BACKWARD(a.d_beta.data = const_cast<void *>(a.beta.data)), true},
    {"BackwardDBetaInDDecay", kInvalid, "d_decay and d_beta share memory", BACKWARD(a.d_beta.data = a.d_decay.data),
     true},
    {"BackwardCacheOfTheAdditiveWrite", kSmall, "state_cache holds", BACKWARD(a.state_cache.bytes /= 2), true},
    {"StepWithoutBeta", kInvalid, "beta is null", STEP((a.beta = {nullptr, 0})), true},
    {"StepBetaTooSmall", kSmall, "beta holds", STEP(a.beta.bytes = 4), true},
    {"StepBetaMisaligned", kMisaligned, "beta at", STEP(misalign(a.beta, 2)), true},
    {"StepBetaInO", kInvalid, "beta and o share memory", STEP(a.beta.data = in(a.o.data, 4)), true},
};

}  // namespace

INSTANTIATE_TEST_SUITE_P(Delta, WrongCalls, testing::ValuesIn(kDelta), name_of_row);
INSTANTIATE_TEST_SUITE_P(Forward, WrongCalls, testing::ValuesIn(kForward), name_of_row);
INSTANTIATE_TEST_SUITE_P(Backward, WrongCalls, testing::ValuesIn(kBackward), name_of_row);
INSTANTIATE_TEST_SUITE_P(Add, WrongCalls, testing::ValuesIn(kAdd), name_of_row);
INSTANTIATE_TEST_SUITE_P(Step, WrongCalls, testing::ValuesIn(kStep), name_of_row);
