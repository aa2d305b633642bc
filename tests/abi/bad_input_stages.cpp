// Wrong calls of the stages, of the composition of maps, and on detached comms.
#include <limits>
#include <type_traits>

#include "bad_input.h"

namespace {

constexpr lasp_status kSmall = LASP_ERROR_BUFFER_TOO_SMALL, kMisaligned = LASP_ERROR_MISALIGNED;
constexpr lasp_status kStruct = LASP_ERROR_INVALID_STRUCT, kHandle = LASP_ERROR_INVALID_HANDLE;

// Rank 1 of two without a transport; each has the rig's tokens. Its plan has the rig's buffers and some of its own.
struct Detached {
  explicit Detached(Rig &rig, const lasp_problem &problem = Rig::valid_problem(), bool check_values = false) {
    Rig::must(lasp_comm_create_detached(1, 2, &comm));
    lasp_context_options options = LASP_CONTEXT_OPTIONS_INIT;
    options.cpu_threads = 1, options.check_values = check_values ? 1 : 0;
    Rig::must(lasp_context_create(LASP_ABI, comm, &options, &context));
    status = lasp_plan_create(context, &problem, &plan);
    if (status != LASP_OK) return;
    Rig::must(lasp_plan_get_info(plan, &info));
    forward = rig.forward_args(), backward = rig.backward_args();
    // Such a plan has a larger workspace than the rig's.
    forward.workspace = rig.arena.take(info.workspace_forward_bytes);
    backward.workspace = rig.arena.take(info.workspace_backward_bytes);
    forward.state_cache = rig.arena.take(info.state_cache_bytes);
    backward.state_cache = {forward.state_cache.data, forward.state_cache.bytes};
    map = rig.arena.take(info.map_bytes), other = rig.arena.take(info.map_bytes + 64);
    all = rig.arena.take(2 * info.map_bytes), incoming = rig.arena.take(rig.state.bytes);
    carry = rig.arena.take(info.carry_forward_bytes), carry_backward = rig.arena.take(info.carry_backward_bytes);
  }
  ~Detached() {
    lasp_plan_destroy(plan);
    lasp_context_destroy(context);
    lasp_comm_destroy(comm);
  }
  Detached(const Detached &) = delete;
  Detached &operator=(const Detached &) = delete;

  lasp_comm *comm = nullptr;
  lasp_context *context = nullptr;
  lasp_plan *plan = nullptr;
  lasp_status status = LASP_OK;
  lasp_plan_info info = LASP_PLAN_INFO_INIT;
  lasp_forward_args forward = LASP_FORWARD_ARGS_INIT;
  lasp_backward_args backward = LASP_BACKWARD_ARGS_INIT;
  lasp_buffer map, other, all, incoming, carry, carry_backward;
};

lasp_const_buffer as_const(const lasp_buffer &buffer) { return {buffer.data, buffer.bytes}; }
void misalign(lasp_buffer &buffer) { buffer.data = static_cast<char *>(buffer.data) + 4, buffer.bytes -= 4; }

enum class Kind { kSummarize, kApply };
template <class Change>
lasp_status forward(Rig &rig, Kind kind, Change change) {
  Detached d(rig);
  lasp_forward_args a = d.forward;
  kind == Kind::kSummarize ? void(a.maps = d.map) : void(a.incoming = as_const(d.incoming));
  a.carry = d.carry;
  change(a, d);
  return (kind == Kind::kSummarize ? lasp_forward_summarize : lasp_forward_apply)(d.plan, &a, nullptr);
}
template <class Change>
lasp_status backward(Rig &rig, Kind kind, Change change) {
  Detached d(rig);
  lasp_backward_args a = d.backward;
  kind == Kind::kSummarize ? void(a.maps = d.map) : void(a.incoming = as_const(d.incoming));
  a.carry = d.carry_backward;
  change(a, d);
  return (kind == Kind::kSummarize ? lasp_backward_summarize : lasp_backward_apply)(d.plan, &a, nullptr);
}
template <class Change>
lasp_status fold(Rig &rig, Change change) {
  Detached d(rig);
  lasp_maps_args a = LASP_MAPS_ARGS_INIT;
  a.maps = as_const(d.all), a.incoming = d.incoming;
  change(a, d);
  return lasp_maps_apply(d.plan, &a, nullptr);
}
template <class Change>
lasp_status compose(Rig &rig, Change change) {
  Detached d(rig);
  lasp_maps_args a = LASP_MAPS_ARGS_INIT;
  a.later = as_const(d.map), a.earlier = as_const(d.other), a.to = {d.all.data, d.info.map_bytes};
  change(a, d);
  return lasp_maps_compose(d.plan, &a, nullptr);
}
// A plan on the detached comm, or one of the rig's context and a stage on it.
template <class Change>
lasp_status detached_plan(Rig &rig, Change change) {
  lasp_problem problem = Rig::valid_problem();
  change(problem);
  return Detached(rig, problem).status;
}
template <class Change>
lasp_status summarize_plan(Rig &rig, Change change) {
  lasp_problem problem = Rig::valid_problem();
  change(problem);
  lasp_plan *plan = nullptr;
  Rig::must(lasp_plan_create(rig.context, &problem, &plan));
  const lasp_forward_args args = rig.forward_args();
  const lasp_status status = lasp_forward_summarize(plan, &args, nullptr);
  Rig::must(lasp_plan_destroy(plan));
  return status;
}

// Of a plan with the delta write, whose maps come from more inputs.
template <class Args, class Change>
lasp_status delta_summarize(Args Detached::*args, lasp_status (*call)(lasp_plan *, const Args *, lasp_stream),
                            Change change) {
  Rig rig(Rig::delta_problem());
  Detached d(rig, Rig::delta_problem());
  Args a = d.*args;
  a.maps = d.map, a.carry = std::is_same_v<Args, lasp_forward_args> ? d.carry : d.carry_backward;
  change(a);
  return call(d.plan, &a, nullptr);
}
#define DELTA_SUMMARIZE(direction, change) \
  [](Rig &) { return delta_summarize(&Detached::direction, lasp_##direction##_summarize, [](auto &a) { change; }); }

#define CHANGED(function, kind, type, change) \
  [](Rig &r) { return function(r, kind, [](type &a, [[maybe_unused]] Detached &d) { change; }); }
#define SUMMARIZE(change) CHANGED(forward, Kind::kSummarize, lasp_forward_args, change)
#define APPLY(change) CHANGED(forward, Kind::kApply, lasp_forward_args, change)
#define SUMMARIZE_BACKWARD(change) CHANGED(backward, Kind::kSummarize, lasp_backward_args, change)
#define APPLY_BACKWARD(change) CHANGED(backward, Kind::kApply, lasp_backward_args, change)
#define FOLD(change) [](Rig &r) { return fold(r, [](lasp_maps_args &a, [[maybe_unused]] Detached &d) { change; }); }
#define COMPOSE(change) \
  [](Rig &r) { return compose(r, [](lasp_maps_args &a, [[maybe_unused]] Detached &d) { change; }); }

void both_ways(lasp_problem &p) { p.decay = LASP_DECAY_NONE, p.mask = LASP_MASK_BIDIRECTIONAL; }

const WrongCall kStages[] = {
    {"NullPlan", kInvalid, "plan is null",
     [](Rig &r) {
       const lasp_forward_args args = r.forward_args();
       return lasp_forward_summarize(nullptr, &args, nullptr);
     }},
    {"WrongHandle", kHandle, "plan",
     [](Rig &r) {
       const lasp_maps_args args = LASP_MAPS_ARGS_INIT;
       return lasp_maps_apply(reinterpret_cast<lasp_plan *>(r.comm), &args, nullptr);
     }},
    {"NullArgs", kInvalid, "args is null", [](Rig &r) { return lasp_backward_apply(r.plan, nullptr, nullptr); }},
    {"Stream", kInvalid, "stream",
     [](Rig &r) {
       const lasp_backward_args args = r.backward_args();
       return lasp_backward_summarize(r.plan, &args, reinterpret_cast<lasp_stream>(&r));
     }},
    {"RelayPlan", kUnsupported, "no stages; schedule = LASP_SCHEDULE_RELAY",
     [](Rig &r) { return summarize_plan(r, [](lasp_problem &p) { p.schedule = LASP_SCHEDULE_RELAY; }); }},
    {"BidirectionalPlan", kUnsupported, "no stages; mask", [](Rig &r) { return summarize_plan(r, both_ways); }},
    {"PlanWithSegment", kUnsupported, "no stages; segment",
     [](Rig &r) { return summarize_plan(r, [](lasp_problem &p) { p.segment = 16; }); }},
    {"ForwardOnlyPlan", kInvalid, "backward = 0",
     [](Rig &r) {
       lasp_problem problem = Rig::valid_problem();
       problem.backward = 0;
       lasp_plan *plan = nullptr;
       Rig::must(lasp_plan_create(r.context, &problem, &plan));
       const lasp_backward_args args = r.backward_args();
       const lasp_status status = lasp_backward_summarize(plan, &args, nullptr);
       Rig::must(lasp_plan_destroy(plan));
       return status;
     }},
    {"NoMap", kInvalid, "maps is null", SUMMARIZE(a.maps = {})},
    {"SmallMap", kSmall, "maps holds", SUMMARIZE(--a.maps.bytes)},
    {"MisalignedMap", kMisaligned, "maps at", SUMMARIZE((a.maps = d.other, misalign(a.maps)))},
    {"MapInTheWorkspace", kInvalid, "maps.*share memory|share memory.*", SUMMARIZE(a.maps.data = a.workspace.data)},
    {"SummarizeWithIncoming", kInvalid, "incoming is given", SUMMARIZE(a.incoming = as_const(d.incoming))},
    {"SummarizeFromTheCache", kInvalid, "reuse_state_cache = 1", SUMMARIZE(a.reuse_state_cache = 1)},
    {"SummarizeWithoutKeys", kInvalid, "k is null", SUMMARIZE(a.k = {})},
    {"SummarizeWithoutCache", kInvalid, "state_cache is null", SUMMARIZE(a.state_cache = {})},
    {"SmallCarry", kSmall, "carry holds", SUMMARIZE(--a.carry.bytes)},
    {"CarryIsTheCache", kInvalid, "share memory", SUMMARIZE(a.carry.data = a.state_cache.data)},
    {"ApplyWithMaps", kInvalid, "maps is given", APPLY(a.maps = d.map)},
    {"ApplyWithoutOutput", kInvalid, "o is null", APPLY(a.o = {})},
    {"ApplyWithoutQueries", kInvalid, "q is null", APPLY(a.q = {})},
    {"SmallIncoming", kSmall, "incoming holds", APPLY(--a.incoming.bytes)},
    {"IncomingIsTheOutput", kInvalid, "share memory", APPLY(a.incoming.data = a.o.data)},
    {"ApplySmallCarry", kSmall, "carry holds", APPLY(--a.carry.bytes)},
    {"ApplyReserved", kInvalid, "reserved", APPLY(a.reserved = 1)},
    {"ApplyStructSize", kStruct, "args.size", APPLY(a.size = 3)},
    {"BackwardNoMap", kInvalid, "maps is null", SUMMARIZE_BACKWARD(a.maps = {})},
    {"BackwardSummarizeWithoutQueries", kInvalid, "q is null", SUMMARIZE_BACKWARD(a.q = {})},
    {"BackwardSummarizeWithoutGradient", kInvalid, "d_o is null", SUMMARIZE_BACKWARD(a.d_o = {})},
    {"BackwardSmallCarry", kSmall, "carry holds", SUMMARIZE_BACKWARD(--a.carry.bytes)},
    {"BackwardApplyWithoutCache", kInvalid, "state_cache is null", APPLY_BACKWARD(a.state_cache = {})},
    {"BackwardApplyWithoutResult", kInvalid, "dk is null", APPLY_BACKWARD(a.dk = {})},
    {"BackwardApplyWithMaps", kInvalid, "maps is given", APPLY_BACKWARD(a.maps = d.map)},
    {"DeltaSummarizeWithoutBeta", kInvalid, "beta is null", DELTA_SUMMARIZE(forward, a.beta = {})},
    {"DeltaSummarizeSmallBeta", kSmall, "beta holds", DELTA_SUMMARIZE(forward, --a.beta.bytes)},
    {"DeltaBackwardSummarizeWithoutKeys", kInvalid, "k is null", DELTA_SUMMARIZE(backward, a.k = {})},
    {"DeltaBackwardSummarizeWithoutBeta", kInvalid, "beta is null", DELTA_SUMMARIZE(backward, a.beta = {})},
    {"DeltaBackwardSummarizeWithoutCache", kInvalid, "state_cache is null",
     DELTA_SUMMARIZE(backward, a.state_cache = {})},
    {"DeltaBackwardSmallCarry", kSmall, "carry holds", DELTA_SUMMARIZE(backward, --a.carry.bytes)},
    {"WholePassWithMaps", kInvalid, "maps is given",
     [](Rig &r) {
       lasp_forward_args a = r.forward_args();
       a.maps = r.d_decay;
       return lasp_forward(r.plan, &a, nullptr);
     }},
    {"WholePassWithIncoming", kInvalid, "incoming is given",
     [](Rig &r) {
       lasp_forward_args a = r.forward_args();
       a.incoming = r.initial_state;
       return lasp_forward(r.plan, &a, nullptr);
     }},
    {"WholePassWithCarry", kInvalid, "carry is given",
     [](Rig &r) {
       lasp_backward_args a = r.backward_args();
       a.carry = r.final_state;
       return lasp_backward(r.plan, &a, nullptr);
     }},
};

const WrongCall kMaps[] = {
    {"StructSize", kStruct, "args.size", FOLD(a.size = 8)},
    {"Direction", kInvalid, "args.backward = 2", FOLD(a.backward = 2)},
    {"Reserved", kInvalid, "args.reserved = 1", FOLD(a.reserved = 1)},
    {"FewMaps", kSmall, "maps holds", FOLD(--a.maps.bytes)},
    {"NoMaps", kInvalid, "maps is null", FOLD(a.maps = {})},
    {"NoIncoming", kInvalid, "incoming is null", FOLD(a.incoming = {})},
    {"SmallIncoming", kSmall, "incoming holds", FOLD(--a.incoming.bytes)},
    {"IncomingAmongMaps", kInvalid, "share memory", FOLD(a.incoming.data = d.all.data)},
    {"ApplyWithLater", kInvalid, "later is given", FOLD(a.later = as_const(d.map))},
    {"ApplyWithEarlier", kInvalid, "earlier is given", FOLD(a.earlier = as_const(d.map))},
    {"ApplyWithTo", kInvalid, "to is given", FOLD(a.to = d.map)},
    {"ComposeWithMaps", kInvalid, "maps is given", COMPOSE(a.maps = as_const(d.all))},
    {"ComposeWithIncoming", kInvalid, "incoming is given", COMPOSE(a.incoming = d.incoming)},
    {"NoLater", kInvalid, "later is null", COMPOSE(a.later = {})},
    {"SmallEarlier", kSmall, "earlier holds", COMPOSE(a.earlier.bytes = d.info.map_bytes - 1)},
    {"MisalignedTo", kMisaligned, "to at", COMPOSE((a.to = d.all, misalign(a.to)))},
    {"ToMeetsEarlier", kInvalid, "earlier and to share memory",
     COMPOSE((a.to = {static_cast<char *>(d.other.data) + 64, d.info.map_bytes}))},
};

const WrongCall kDetached[] = {
    {"NoComm", kInvalid, "comm is null", [](Rig &) { return lasp_comm_create_detached(0, 1, nullptr); }},
    {"NoRanks", kInvalid, "nranks = 0", [](Rig &r) { return lasp_comm_create_detached(0, 0, &r.outs.comm); }},
    {"ManyRanks", kInvalid, "nranks = 65537",
     [](Rig &r) { return lasp_comm_create_detached(0, 65537, &r.outs.comm); }},
    {"NegativeRank", kInvalid, "rank = -1", [](Rig &r) { return lasp_comm_create_detached(-1, 2, &r.outs.comm); }},
    {"RankOutside", kInvalid, "rank = 2", [](Rig &r) { return lasp_comm_create_detached(2, 2, &r.outs.comm); }},
    {"Forward", kUnsupported, "detached and sends nothing.*lasp_forward_summarize",
     [](Rig &r) {
       Detached d(r);
       return lasp_forward(d.plan, &d.forward, nullptr);
     }},
    {"Backward", kUnsupported, "detached and sends nothing.*lasp_backward_apply",
     [](Rig &r) {
       Detached d(r);
       return lasp_backward(d.plan, &d.backward, nullptr);
     }},
    {"Halo", kUnsupported, "plan: its comm is detached",
     [](Rig &r) {
       Detached d(r);
       lasp_halo_options options = LASP_HALO_OPTIONS_INIT;
       options.channels = 4;
       lasp_halo *halo = nullptr;
       return lasp_halo_create(d.plan, &options, &halo);
     }},
    {"Bidirectional", kUnsupported, "mask.*detached", [](Rig &r) { return detached_plan(r, both_ways); }},
    {"Relay", kUnsupported, "schedule = LASP_SCHEDULE_RELAY.*detached",
     [](Rig &r) { return detached_plan(r, [](lasp_problem &p) { p.schedule = LASP_SCHEDULE_RELAY; }); }},
    {"Segment", kUnsupported, "segment.*detached",
     [](Rig &r) { return detached_plan(r, [](lasp_problem &p) { p.segment = 16; }); }},
    {"Broadcast", kUnsupported, "broadcast_final_state",
     [](Rig &r) { return detached_plan(r, [](lasp_problem &p) { p.broadcast_final_state = 1; }); }},
};

// What lasp_problem_get_info refuses, and leaves unwritten.
template <class Change>
lasp_status assumed(Rig &rig, Change change) {
  lasp_problem problem = Rig::valid_problem();
  lasp_placement placement = LASP_PLACEMENT_INIT;
  placement.nranks = 4;
  change(problem, placement);
  return lasp_problem_get_info(&problem, &placement, &rig.outs.info);
}
#define ASSUMED(change)                                                                                       \
  [](Rig &r) {                                                                                                \
    return assumed(r, []([[maybe_unused]] lasp_problem &p, [[maybe_unused]] lasp_placement &at) { change; }); \
  }

const WrongCall kAssumed[] = {
    {"NoProblem", kInvalid, "problem is null",
     [](Rig &r) {
       const lasp_placement placement = LASP_PLACEMENT_INIT;
       return lasp_problem_get_info(nullptr, &placement, &r.outs.info);
     }},
    {"NoPlacement", kInvalid, "placement is null",
     [](Rig &r) {
       const lasp_problem problem = Rig::valid_problem();
       return lasp_problem_get_info(&problem, nullptr, &r.outs.info);
     }},
    {"NoInfo", kInvalid, "info is null",
     [](Rig &) {
       const lasp_problem problem = Rig::valid_problem();
       const lasp_placement placement = LASP_PLACEMENT_INIT;
       return lasp_problem_get_info(&problem, &placement, nullptr);
     }},
    {"PlacementSize", kStruct, "placement.size", ASSUMED(at.size = 3)},
    {"Rank", kInvalid, "rank = 4", ASSUMED(at.rank = 4)},
    {"Ranks", kInvalid, "nranks = 0", ASSUMED(at.nranks = 0)},
    {"OnAnUnknownGpu", kInvalid, "placement.capability = 0", ASSUMED(at.device = LASP_DEVICE_CUDA)},
    {"OnAGpuOfNoMultiprocessors", kInvalid, "placement.multiprocessors = -1",
     ASSUMED((at.device = LASP_DEVICE_CUDA, at.capability = 90, at.multiprocessors = -1))},
    {"Device", kInvalid, "placement.device = 77", ASSUMED(at.device = 77)},
    {"Capability", kInvalid, "placement.capability = 90", ASSUMED(at.capability = 90)},
    {"Multiprocessors", kInvalid, "placement.multiprocessors = 1", ASSUMED(at.multiprocessors = 1)},
    {"Reserved", kInvalid, "placement.reserved = 1", ASSUMED(at.reserved = 1)},
    {"Problem", kUnsupported, "head_dim_k", ASSUMED(p.head_dim_k = 7)},
};

INSTANTIATE_TEST_SUITE_P(Assumed, WrongCalls, testing::ValuesIn(kAssumed), name_of_row);
INSTANTIATE_TEST_SUITE_P(Stages, WrongCalls, testing::ValuesIn(kStages), name_of_row);
INSTANTIATE_TEST_SUITE_P(Maps, WrongCalls, testing::ValuesIn(kMaps), name_of_row);
INSTANTIATE_TEST_SUITE_P(Detached, WrongCalls, testing::ValuesIn(kDetached), name_of_row);

// The valid calls that the rows depart from; a refusal leaves the comm whole.
TEST(Stages, ValidCallsSucceed) {
  Rig rig;
  Detached d(rig);
  EXPECT_EQ(lasp_forward(d.plan, &d.forward, nullptr), LASP_ERROR_UNSUPPORTED);
  EXPECT_EQ(lasp_backward(d.plan, &d.backward, nullptr), LASP_ERROR_UNSUPPORTED);
  lasp_forward_args first = d.forward;
  first.maps = d.map, first.carry = d.carry;
  EXPECT_EQ(lasp_forward_summarize(d.plan, &first, nullptr), LASP_OK) << lasp_last_error();
  lasp_maps_args maps = LASP_MAPS_ARGS_INIT;
  maps.maps = as_const(d.all), maps.incoming = d.incoming;
  std::memset(d.all.data, 0, d.all.bytes);
  EXPECT_EQ(lasp_maps_apply(d.plan, &maps, nullptr), LASP_OK) << lasp_last_error();
  lasp_maps_args composed = LASP_MAPS_ARGS_INIT;
  composed.later = as_const(d.map), composed.earlier = as_const(d.map), composed.to = d.map;
  EXPECT_EQ(lasp_maps_compose(d.plan, &composed, nullptr), LASP_OK) << lasp_last_error();
  lasp_forward_args second = d.forward;
  second.incoming = as_const(d.incoming), second.carry = d.carry;
  EXPECT_EQ(lasp_forward_apply(d.plan, &second, nullptr), LASP_OK) << lasp_last_error();
  second.incoming = {}, second.carry = {};
  second.reuse_state_cache = 1;
  EXPECT_EQ(lasp_forward_apply(d.plan, &second, nullptr), LASP_OK) << lasp_last_error();
  EXPECT_EQ(lasp_forward(d.plan, &second, nullptr), LASP_OK) << lasp_last_error();
  lasp_backward_args backward = d.backward;
  backward.maps = d.map, backward.carry = d.carry_backward;
  EXPECT_EQ(lasp_backward_summarize(d.plan, &backward, nullptr), LASP_OK) << lasp_last_error();
  backward.maps = {}, backward.incoming = as_const(d.incoming);
  EXPECT_EQ(lasp_backward_apply(d.plan, &backward, nullptr), LASP_OK) << lasp_last_error();
}

TEST(Stages, LookThroughTheirValues) {
  Rig rig;
  Detached d(rig, Rig::valid_problem(), true);
  lasp_forward_args first = d.forward;
  first.maps = d.map;
  EXPECT_EQ(lasp_forward_summarize(d.plan, &first, nullptr), LASP_OK) << lasp_last_error();
  static_cast<float *>(const_cast<void *>(rig.k.data))[3] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(lasp_forward_summarize(d.plan, &first, nullptr), LASP_ERROR_VALUES);
  EXPECT_EQ(lasp_forward_apply(d.plan, &d.forward, nullptr), LASP_ERROR_VALUES);
}

// Of the delta write: nothing of v, and a map that meets neither of the two that it is made of, or one of them.
TEST(Stages, ValidCallsOfTheDeltaWriteSucceed) {
  lasp_problem problem = Rig::valid_problem();
  problem.write = LASP_WRITE_DELTA;
  Rig rig(problem);
  Detached d(rig, problem);
  ASSERT_EQ(d.status, LASP_OK) << lasp_last_error();
  EXPECT_EQ(d.info.transition, LASP_TRANSITION_DENSE);
  EXPECT_EQ(d.info.map_transition_offset, rig.state.bytes);
  EXPECT_EQ(d.info.map_bytes, rig.state.bytes + Rig::kHeads * Rig::kHeadDimK * Rig::kHeadDimK * 4);
  lasp_forward_args first = d.forward;
  first.maps = d.map, first.carry = d.carry, first.q = {}, first.o = {};
  EXPECT_EQ(lasp_forward_summarize(d.plan, &first, nullptr), LASP_OK) << lasp_last_error();
  for (const lasp_buffer &to : {d.all, d.map}) {
    lasp_maps_args composed = LASP_MAPS_ARGS_INIT;
    composed.later = as_const(d.map), composed.earlier = as_const(d.map), composed.to = {to.data, d.map.bytes};
    EXPECT_EQ(lasp_maps_compose(d.plan, &composed, nullptr), LASP_OK) << lasp_last_error();
  }
  lasp_backward_args backward = d.backward;
  backward.maps = d.map, backward.carry = d.carry_backward, backward.v = {};
  EXPECT_EQ(lasp_backward_summarize(d.plan, &backward, nullptr), LASP_OK) << lasp_last_error();
}

// Everything that only asks, on a detached comm.
TEST(Stages, ADetachedCommAnswers) {
  Rig rig;
  Detached d(rig);
  int32_t rank = -1, nranks = -1;
  EXPECT_EQ(lasp_comm_get_rank(d.comm, &rank, &nranks), LASP_OK);
  EXPECT_EQ(rank, 1);
  EXPECT_EQ(nranks, 2);
  EXPECT_EQ(d.info.rank, 1);
  EXPECT_EQ(d.info.token_begin, Rig::kTokens);
  EXPECT_EQ(d.info.total_tokens, 2 * Rig::kTokens);
  EXPECT_EQ(d.info.forward_bytes_sent + d.info.backward_bytes_sent, 0u);
  int32_t first = -1, last = -1;
  EXPECT_EQ(lasp_plan_get_owners(d.plan, 0, 2 * Rig::kTokens, &first, &last), LASP_OK);
  EXPECT_EQ(first, 0);
  EXPECT_EQ(last, 1);
  size_t needed = 0;
  EXPECT_EQ(lasp_plan_describe(d.plan, nullptr, 0, &needed), LASP_OK);
  std::string text(needed, '\0');
  EXPECT_EQ(lasp_plan_describe(d.plan, text.data(), text.size(), nullptr), LASP_OK);
  EXPECT_NE(text.find("rank: 1 of 2 over detached"), std::string::npos) << text;
  EXPECT_EQ(lasp_plan_prepare(d.plan, nullptr), LASP_OK);
  lasp_status status = LASP_ERROR_INTERNAL;
  EXPECT_EQ(lasp_context_get_async_error(d.context, &status, nullptr, 0), LASP_OK);
  EXPECT_EQ(status, LASP_OK);
  lasp_traffic traffic = LASP_TRAFFIC_INIT;
  EXPECT_EQ(lasp_comm_get_traffic(d.comm, &traffic), LASP_OK);
  EXPECT_EQ(traffic.messages_sent, 0u);
  std::memset(rig.state.data, 0, rig.state.bytes);
  const lasp_step_args step = rig.step_args();
  EXPECT_EQ(lasp_step(d.plan, &step, nullptr), LASP_OK) << lasp_last_error();
  EXPECT_EQ(lasp_context_abort(d.context), LASP_OK);
  EXPECT_EQ(lasp_step(d.plan, &step, nullptr), LASP_ERROR_ABORTED);
}

TEST(Stages, PlanInfoDescribesTheMap) {
  Rig rig;
  const auto info_of = [&](int32_t decay, bool packed) {
    lasp_problem p = Rig::valid_problem();
    p.decay = decay;
    if (packed) p.max_sequences = 2;
    return Detached(rig, p).info;
  };
  constexpr uint64_t kState = Rig::kHeads * Rig::kHeadDimK * Rig::kHeadDimV * 4;
  EXPECT_EQ(info_of(LASP_DECAY_NONE, false).transition, LASP_TRANSITION_IDENTITY);
  EXPECT_EQ(info_of(LASP_DECAY_NONE, false).map_bytes, kState);
  EXPECT_EQ(info_of(LASP_DECAY_NONE, false).map_transition_offset, kState);
  EXPECT_EQ(info_of(LASP_DECAY_NONE, true).transition, LASP_TRANSITION_SCALAR);
  EXPECT_EQ(info_of(LASP_DECAY_HEAD, false).transition, LASP_TRANSITION_SCALAR);
  EXPECT_EQ(info_of(LASP_DECAY_SCALAR, false).map_bytes, kState + 64);
  EXPECT_EQ(info_of(LASP_DECAY_CHANNEL, true).transition, LASP_TRANSITION_DIAGONAL);
  EXPECT_EQ(info_of(LASP_DECAY_CHANNEL, true).map_bytes, kState + Rig::kHeads * Rig::kHeadDimK * 4);
  EXPECT_EQ(info_of(LASP_DECAY_CHANNEL, true).num_runs, 1);
  lasp_plan_info own = LASP_PLAN_INFO_INIT;  // of a group of one, whose second stage is the whole pass
  Rig::must(lasp_plan_get_info(rig.plan, &own));
  EXPECT_EQ(own.carry_forward_bytes + own.carry_backward_bytes, 0u);
  EXPECT_GT(own.map_bytes, 0u);
}

}  // namespace
