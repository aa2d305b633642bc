// Wrong calls on comms, contexts, plans' queries and the pure helpers.
#include <cmath>
#include <limits>

#include "bad_input.h"

namespace {

// A handle that was made and destroyed.
lasp_comm *dead_comm() {
  lasp_comm *comm = nullptr;
  Rig::must(lasp_comm_create_self(&comm));
  Rig::must(lasp_comm_destroy(comm));
  return comm;
}
lasp_context *dead_context(Rig &rig) {
  lasp_context *context = nullptr;
  Rig::must(lasp_context_create(LASP_ABI, rig.comm, nullptr, &context));
  Rig::must(lasp_context_destroy(context));
  return context;
}
lasp_plan *dead_plan(Rig &rig) {
  lasp_plan *plan = nullptr;
  const lasp_problem problem = Rig::valid_problem();
  Rig::must(lasp_plan_create(rig.context, &problem, &plan));
  Rig::must(lasp_plan_destroy(plan));
  return plan;
}

template <class Change>
lasp_status make_context(Rig &rig, Change change) {
  lasp_context_options options = LASP_CONTEXT_OPTIONS_INIT;
  change(options);
  return lasp_context_create(LASP_ABI, rig.comm, &options, &rig.outs.context);
}

// A transport that is never used: the table is refused before.
lasp_status no_send(void *, const void *, uint64_t, int32_t, int32_t, lasp_stream, void **) {
  return LASP_ERROR_TRANSPORT;
}
lasp_status no_receive(void *, void *, uint64_t, int32_t, int32_t, lasp_stream, void **) {
  return LASP_ERROR_TRANSPORT;
}
lasp_status no_test(void *, void *, int32_t *) { return LASP_ERROR_TRANSPORT; }
lasp_status no_wait(void *, void *, int64_t, int32_t *) { return LASP_ERROR_TRANSPORT; }
void no_cancel(void *, void *) {}
// "On failure `destroy` is not called": a call here shows in an out-parameter.
void count_destroy(void *user) { ++static_cast<Outs *>(user)->number; }

template <class Change>
lasp_status make_custom(Rig &rig, Change change) {
  lasp_transport transport = LASP_TRANSPORT_INIT;
  transport.nranks = 2;
  transport.send = no_send, transport.receive = no_receive, transport.test = no_test;
  transport.wait = no_wait, transport.cancel = no_cancel, transport.destroy = count_destroy;
  change(transport);
  return lasp_comm_create_custom(&transport, &rig.outs, &rig.outs.comm);
}

// What a call answers in a build with CUDA; without it there is only one answer.
lasp_status with_cuda(lasp_status status) {
  lasp_build_info info = LASP_BUILD_INFO_INIT;
  Rig::must(lasp_get_build_info(&info));
  return info.has_cuda == 1 ? status : LASP_ERROR_NOT_BUILT;
}

// A table of NCCL's functions that describe a communicator of two ranks on device 0; none that would send is
// called.
template <int kVersion>
int nccl_version(int *version) {
  *version = kVersion;
  return 0;
}
template <int kState>
int nccl_state(void *, int *state) {
  *state = kState;
  return 0;
}
template <int kNumber>
int nccl_number(void *, int *number) {
  *number = kNumber;
  return 0;
}
int nccl_fails(int *) { return 3; }
const char *nccl_text(int) { return "a failure"; }

template <class Change>
lasp_status make_nccl(Rig &rig, Change change, lasp_comm **comm) {
  const auto never = reinterpret_cast<lasp_function>(&nccl_fails);
  lasp_nccl_functions f = LASP_NCCL_FUNCTIONS_INIT;
  f.get_version = reinterpret_cast<lasp_function>(&nccl_version<22809>);
  f.comm_count = reinterpret_cast<lasp_function>(&nccl_number<2>);
  f.comm_user_rank = reinterpret_cast<lasp_function>(&nccl_number<1>);
  f.comm_cu_device = reinterpret_cast<lasp_function>(&nccl_number<0>);
  f.comm_get_async_error = reinterpret_cast<lasp_function>(&nccl_state<0>);
  f.get_error_string = reinterpret_cast<lasp_function>(&nccl_text);
  f.send = f.recv = f.all_gather = f.group_start = f.group_end = never;
  change(f);
  return lasp_comm_create_nccl(reinterpret_cast<struct ncclComm *>(&rig), &f, comm);
}
template <class Change>
lasp_status make_nccl(Rig &rig, Change change) {
  return make_nccl(rig, change, &rig.outs.comm);
}

// Of a communicator with the given transport, a context on the given device.
lasp_status make_context_on(lasp_comm *comm, int32_t device, int32_t index) {
  lasp_context_options options = LASP_CONTEXT_OPTIONS_INIT;
  options.device = device;
  options.device_index = index;
  lasp_context *context = nullptr;
  const lasp_status status = lasp_context_create(LASP_ABI, comm, &options, &context);
  lasp_context_destroy(context);
  return status;
}

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr lasp_status kHandle = LASP_ERROR_INVALID_HANDLE, kStruct = LASP_ERROR_INVALID_STRUCT;

const WrongCall kComm[] = {
    {"SelfNull", kInvalid, "comm", [](Rig &) { return lasp_comm_create_self(nullptr); }},
    {"ThreadsNull", kInvalid, "comms", [](Rig &) { return lasp_comm_create_threads(2, nullptr); }},
    {"ThreadsZero", kInvalid, "nranks", [](Rig &r) { return lasp_comm_create_threads(0, r.outs.comms); }},
    {"ThreadsNegative", kInvalid, "nranks", [](Rig &r) { return lasp_comm_create_threads(-4, r.outs.comms); }},
    {"ThreadsTooMany", kInvalid, "nranks", [](Rig &r) { return lasp_comm_create_threads(1025, r.outs.comms); }},
    {"NcclNull", kInvalid, "nccl", [](Rig &r) { return lasp_comm_create_nccl(nullptr, nullptr, &r.outs.comm); }},
    {"NcclNullOut", kInvalid, "comm",
     [](Rig &r) {
       return make_nccl(
           r, [](auto &) {}, nullptr);
     }},
    {"NcclGap", with_cuda(kInvalid), "group_end|NCCL",
     [](Rig &r) { return make_nccl(r, [](auto &f) { f.group_end = nullptr; }); }},
    {"NcclTooOld", with_cuda(LASP_ERROR_LIBRARY_MISSING), "2\\.18|NCCL",
     [](Rig &r) {
       return make_nccl(r, [](auto &f) { f.get_version = reinterpret_cast<lasp_function>(&nccl_version<21700>); });
     }},
    {"NcclVersionFails", with_cuda(LASP_ERROR_LIBRARY_MISSING), "ncclGetVersion|NCCL",
     [](Rig &r) {
       return make_nccl(r, [](auto &f) { f.get_version = reinterpret_cast<lasp_function>(&nccl_fails); });
     }},
    {"NcclUnfinished", with_cuda(kInvalid), "still being made|NCCL",
     [](Rig &r) {
       return make_nccl(r,
                        [](auto &f) { f.comm_get_async_error = reinterpret_cast<lasp_function>(&nccl_state<7>); });
     }},
    {"NcclBroken", with_cuda(kInvalid), "not a usable communicator|NCCL",
     [](Rig &r) {
       return make_nccl(r,
                        [](auto &f) { f.comm_get_async_error = reinterpret_cast<lasp_function>(&nccl_state<3>); });
     }},
    {"NcclTableSize", kStruct, "functions", [](Rig &r) { return make_nccl(r, [](auto &f) { f.size = 4; }); }},
    {"CustomNullTable", kInvalid, "transport",
     [](Rig &r) { return lasp_comm_create_custom(nullptr, nullptr, &r.outs.comm); }},
    {"CustomNullOut", kInvalid, "comm",
     [](Rig &r) {
       lasp_transport transport = LASP_TRANSPORT_INIT;
       transport.send = no_send, transport.receive = no_receive, transport.test = no_test;
       transport.wait = no_wait, transport.cancel = no_cancel;
       return lasp_comm_create_custom(&transport, &r.outs, nullptr);
     }},
    {"CustomNoSend", kInvalid, "send", [](Rig &r) { return make_custom(r, [](auto &t) { t.send = nullptr; }); }},
    {"CustomNoReceive", kInvalid, "receive",
     [](Rig &r) { return make_custom(r, [](auto &t) { t.receive = nullptr; }); }},
    {"CustomNoTest", kInvalid, "test", [](Rig &r) { return make_custom(r, [](auto &t) { t.test = nullptr; }); }},
    {"CustomNoWait", kInvalid, "wait", [](Rig &r) { return make_custom(r, [](auto &t) { t.wait = nullptr; }); }},
    {"CustomNoCancel", kInvalid, "cancel",
     [](Rig &r) { return make_custom(r, [](auto &t) { t.cancel = nullptr; }); }},
    {"CustomRankNegative", kInvalid, "rank", [](Rig &r) { return make_custom(r, [](auto &t) { t.rank = -1; }); }},
    {"CustomRankBeyond", kInvalid, "rank", [](Rig &r) { return make_custom(r, [](auto &t) { t.rank = 2; }); }},
    {"CustomNoRanks", kInvalid, "nranks", [](Rig &r) { return make_custom(r, [](auto &t) { t.nranks = 0; }); }},
    {"CustomTooManyRanks", kInvalid, "nranks",
     [](Rig &r) { return make_custom(r, [](auto &t) { t.nranks = 65537; }); }},
    {"CustomLocalRanks", kInvalid, "local_ranks",
     [](Rig &r) { return make_custom(r, [](auto &t) { t.local_ranks = -1; }); }},
    {"CustomMemory", kInvalid, "memory", [](Rig &r) { return make_custom(r, [](auto &t) { t.memory = 7; }); }},
    {"CustomLatency", kInvalid, "latency_us",
     [](Rig &r) { return make_custom(r, [](auto &t) { t.latency_us = -1; }); }},
    {"CustomBandwidth", kInvalid, "bandwidth_gbs",
     [](Rig &r) { return make_custom(r, [](auto &t) { t.bandwidth_gbs = kNan; }); }},
    {"CustomLatencyInfinite", kInvalid, "latency_us = inf, .*must be finite",
     [](Rig &r) { return make_custom(r, [](auto &t) { t.latency_us = kInfinity; }); }},
    {"CustomBandwidthInfinite", kInvalid, "bandwidth_gbs = inf: must be finite",
     [](Rig &r) { return make_custom(r, [](auto &t) { t.bandwidth_gbs = kInfinity; }); }},
    {"CustomSize", kStruct, "transport", [](Rig &r) { return make_custom(r, [](auto &t) { t.size = 4; }); }},
    {"RankOfNull", kInvalid, "comm",
     [](Rig &r) { return lasp_comm_get_rank(nullptr, &r.outs.number, &r.outs.numbers[0]); }},
    {"RankOfDead", kHandle, "comm",
     [](Rig &r) { return lasp_comm_get_rank(dead_comm(), &r.outs.number, &r.outs.numbers[0]); }},
    {"RankOfContext", kHandle, "comm",
     [](Rig &r) {
       return lasp_comm_get_rank(reinterpret_cast<lasp_comm *>(r.context), &r.outs.number, &r.outs.numbers[0]);
     }},
    {"TrafficOfNull", kInvalid, "comm", [](Rig &r) { return lasp_comm_get_traffic(nullptr, &r.outs.traffic); }},
    {"TrafficNull", kInvalid, "traffic", [](Rig &r) { return lasp_comm_get_traffic(r.comm, nullptr); }},
    {"TrafficSize", kStruct, "traffic",
     [](Rig &r) {
       lasp_traffic traffic = LASP_TRAFFIC_INIT;
       traffic.size = 3;
       return lasp_comm_get_traffic(r.comm, &traffic);
     }},
    {"DestroyTwice", kHandle, "comm", [](Rig &) { return lasp_comm_destroy(dead_comm()); }},
    {"DestroyInUse", LASP_ERROR_IN_USE, "comm", [](Rig &r) { return lasp_comm_destroy(r.comm); }},
    {"DestroyAPlan", kHandle, "comm",
     [](Rig &r) { return lasp_comm_destroy(reinterpret_cast<lasp_comm *>(r.plan)); }},
};

// A context on `device` over a custom transport whose pointers are `memory`.
lasp_status with_custom(int32_t memory, int32_t device) {
  lasp_transport transport = LASP_TRANSPORT_INIT;
  transport.nranks = 2;
  transport.memory = memory;
  transport.send = no_send, transport.receive = no_receive, transport.test = no_test;
  transport.wait = no_wait, transport.cancel = no_cancel;
  lasp_comm *comm = nullptr;
  lasp_status status = lasp_comm_create_custom(&transport, nullptr, &comm);
  if (status == LASP_OK) status = make_context_on(comm, device, 0);
  lasp_comm_destroy(comm);
  return status;
}
// The same over a NCCL communicator on device 0.
lasp_status with_nccl(Rig &rig, int32_t device, int32_t index) {
  lasp_comm *comm = nullptr;
  lasp_status status = make_nccl(
      rig, [](auto &) {}, &comm);
  if (status == LASP_OK) status = make_context_on(comm, device, index);
  lasp_comm_destroy(comm);
  return status;
}

const WrongCall kContext[] = {
    {"WrongAbi", LASP_ERROR_ABI_MISMATCH, "header_abi|ABI",
     [](Rig &r) { return lasp_context_create(LASP_ABI + 1, r.comm, nullptr, &r.outs.context); }},
    {"ZeroAbi", LASP_ERROR_ABI_MISMATCH, "header_abi|ABI",
     [](Rig &r) { return lasp_context_create(0, r.comm, nullptr, &r.outs.context); }},
    {"NullComm", kInvalid, "comm",
     [](Rig &r) { return lasp_context_create(LASP_ABI, nullptr, nullptr, &r.outs.context); }},
    {"DeadComm", kHandle, "comm",
     [](Rig &r) { return lasp_context_create(LASP_ABI, dead_comm(), nullptr, &r.outs.context); }},
    {"NullOut", kInvalid, "context",
     [](Rig &r) { return lasp_context_create(LASP_ABI, r.comm, nullptr, nullptr); }},
    {"Device", kInvalid, "device", [](Rig &r) { return make_context(r, [](auto &o) { o.device = 7; }); }},
    {"DeviceCudaBeyond", with_cuda(LASP_ERROR_NO_DEVICE), "CUDA|driver",
     [](Rig &r) {
       return make_context(r, [](auto &o) {
         o.device = LASP_DEVICE_CUDA;
         o.device_index = 9999;
       });
     }},
    {"DeviceCudaNegative", kInvalid, "device_index",
     [](Rig &r) {
       return make_context(r, [](auto &o) {
         o.device = LASP_DEVICE_CUDA;
         o.device_index = -2;
       });
     }},
    {"DeviceAutoOnTheCpu", kInvalid, "device_index = 1: .*on the CPU, where the context is by its comm",
     [](Rig &r) { return make_context(r, [](auto &o) { o.device_index = 1; }); }},
    {"NcclAutoOnAnotherDevice", with_cuda(kInvalid), "device_index|NCCL",
     [](Rig &r) { return with_nccl(r, LASP_DEVICE_AUTO, 1); }},
    {"HostTransportOnCuda", with_cuda(kUnsupported), "host memory|CUDA",
     [](Rig &) { return with_custom(LASP_DEVICE_CPU, LASP_DEVICE_CUDA); }},
    {"DeviceTransportOnCpu", with_cuda(kInvalid), "device memory|CUDA",
     [](Rig &) { return with_custom(LASP_DEVICE_CUDA, LASP_DEVICE_CPU); }},
    {"NcclOnCpu", with_cuda(kInvalid), "device memory|NCCL",
     [](Rig &r) { return with_nccl(r, LASP_DEVICE_CPU, 0); }},
    {"NcclOnAnotherDevice", with_cuda(kInvalid), "device_index|NCCL",
     [](Rig &r) { return with_nccl(r, LASP_DEVICE_CUDA, 1); }},
    {"DeviceIndex", kInvalid, "device_index",
     [](Rig &r) { return make_context(r, [](auto &o) { o.device = LASP_DEVICE_CPU, o.device_index = 1; }); }},
    {"TimeLimit", kInvalid, "time_limit_ms",
     [](Rig &r) { return make_context(r, [](auto &o) { o.time_limit_ms = -2; }); }},
    {"CpuThreads", kInvalid, "cpu_threads",
     [](Rig &r) { return make_context(r, [](auto &o) { o.cpu_threads = -1; }); }},
    {"LogLevel", kInvalid, "log_level", [](Rig &r) { return make_context(r, [](auto &o) { o.log_level = 9; }); }},
    {"Latency", kInvalid, "latency_us", [](Rig &r) { return make_context(r, [](auto &o) { o.latency_us = -1; }); }},
    {"Bandwidth", kInvalid, "bandwidth_gbs",
     [](Rig &r) { return make_context(r, [](auto &o) { o.bandwidth_gbs = kNan; }); }},
    {"ProfilerRanges", kInvalid, "profiler_ranges",
     [](Rig &r) { return make_context(r, [](auto &o) { o.profiler_ranges = 2; }); }},
    {"CheckValues", kInvalid, "check_values = 2",
     [](Rig &r) { return make_context(r, [](auto &o) { o.check_values = 2; }); }},
    {"OptionsReserved", kInvalid, "options.reserved = 1: must be 0",
     [](Rig &r) { return make_context(r, [](auto &o) { o.reserved = 1; }); }},
    {"VerifyMessages", kInvalid, "verify_messages",
     [](Rig &r) { return make_context(r, [](auto &o) { o.verify_messages = 2; }); }},
    {"OptionsSize", kStruct, "options|size", [](Rig &r) { return make_context(r, [](auto &o) { o.size = 2; }); }},
    {"InitNull", kInvalid, "options", [](Rig &) { return lasp_context_options_init(nullptr, 64); }},
    {"DeviceOfNull", kInvalid, "context",
     [](Rig &r) { return lasp_context_get_device(nullptr, &r.outs.number, &r.outs.numbers[0]); }},
    {"DeviceOfDead", kHandle, "context",
     [](Rig &r) { return lasp_context_get_device(dead_context(r), &r.outs.number, &r.outs.numbers[0]); }},
    {"DeviceOfPlan", kHandle, "context",
     [](Rig &r) {
       return lasp_context_get_device(reinterpret_cast<lasp_context *>(r.plan), &r.outs.number, &r.outs.numbers[0]);
     }},
    {"AsyncErrorOfNull", kInvalid, "context",
     [](Rig &r) { return lasp_context_get_async_error(nullptr, &r.outs.status, nullptr, 0); }},
    {"AsyncErrorNull", kInvalid, "status",
     [](Rig &r) { return lasp_context_get_async_error(r.context, nullptr, nullptr, 0); }},
    {"AsyncErrorNoText", kInvalid, "text",
     [](Rig &r) { return lasp_context_get_async_error(r.context, &r.outs.status, nullptr, 64); }},
    {"AsyncErrorOfDead", kHandle, "context",
     [](Rig &r) { return lasp_context_get_async_error(dead_context(r), &r.outs.status, nullptr, 0); }},
    {"AbortNull", kInvalid, "context", [](Rig &) { return lasp_context_abort(nullptr); }},
    {"AbortDead", kHandle, "context", [](Rig &r) { return lasp_context_abort(dead_context(r)); }},
    {"DestroyTwice", kHandle, "context", [](Rig &r) { return lasp_context_destroy(dead_context(r)); }},
    {"DestroyInUse", LASP_ERROR_IN_USE, "context", [](Rig &r) { return lasp_context_destroy(r.context); }},
    {"DestroyAComm", kHandle, "context",
     [](Rig &r) { return lasp_context_destroy(reinterpret_cast<lasp_context *>(r.comm)); }},
};

const WrongCall kPlan[] = {
    {"InfoOfNull", kInvalid, "plan", [](Rig &r) { return lasp_plan_get_info(nullptr, &r.outs.info); }},
    {"InfoNull", kInvalid, "info", [](Rig &r) { return lasp_plan_get_info(r.plan, nullptr); }},
    {"InfoOfDead", kHandle, "plan", [](Rig &r) { return lasp_plan_get_info(dead_plan(r), &r.outs.info); }},
    {"OwnersNullPlan", kInvalid, "plan",
     [](Rig &r) { return lasp_plan_get_owners(nullptr, 0, 1, &r.outs.number, &r.outs.numbers[0]); }},
    {"OwnersNullFirst", kInvalid, "first_rank",
     [](Rig &r) { return lasp_plan_get_owners(r.plan, 0, 1, nullptr, &r.outs.number); }},
    {"OwnersNullLast", kInvalid, "last_rank",
     [](Rig &r) { return lasp_plan_get_owners(r.plan, 0, 1, &r.outs.number, nullptr); }},
    {"OwnersBeginNegative", kInvalid, "begin = -1",
     [](Rig &r) { return lasp_plan_get_owners(r.plan, -1, 1, &r.outs.number, &r.outs.numbers[0]); }},
    {"OwnersEndBeforeBegin", kInvalid, "end = 4: must be at least begin, 5",
     [](Rig &r) { return lasp_plan_get_owners(r.plan, 5, 4, &r.outs.number, &r.outs.numbers[0]); }},
    {"OwnersEndBeyond", kInvalid, "end = 25: the ranks hold 24 tokens",
     [](Rig &r) { return lasp_plan_get_owners(r.plan, 0, 25, &r.outs.number, &r.outs.numbers[0]); }},
    {"DescribeNull", kInvalid, "plan",
     [](Rig &r) { return lasp_plan_describe(nullptr, r.outs.text, sizeof r.outs.text, &r.outs.needed); }},
    {"DescribeNoText", kInvalid, "text",
     [](Rig &r) { return lasp_plan_describe(r.plan, nullptr, 64, &r.outs.needed); }},
    {"PrepareNull", kInvalid, "plan", [](Rig &) { return lasp_plan_prepare(nullptr, nullptr); }},
    {"PrepareStream", kInvalid, "stream",
     [](Rig &r) { return lasp_plan_prepare(r.plan, reinterpret_cast<lasp_stream>(&r)); }},
    {"DestroyTwice", kHandle, "plan", [](Rig &r) { return lasp_plan_destroy(dead_plan(r)); }},
    {"DestroyAContext", kHandle, "plan",
     [](Rig &r) { return lasp_plan_destroy(reinterpret_cast<lasp_plan *>(r.context)); }},
};

lasp_status groups(Rig &r, int32_t world, int32_t ranks, int32_t stride, int32_t rank) {
  return lasp_groups_of_rank(world, ranks, stride, rank, &r.outs.groups);
}
lasp_status world_rank(Rig &r, int32_t world, int32_t ranks, int32_t stride, int32_t group, int32_t rank) {
  return lasp_groups_world_rank(world, ranks, stride, group, rank, &r.outs.number);
}
lasp_status predict(Rig &r, int32_t schedule, int32_t nranks, int32_t pieces, double latency, double bandwidth) {
  return lasp_predict_exchange(schedule, nranks, 1024, pieces, latency, bandwidth, &r.outs.real);
}

const WrongCall kHelpers[] = {
    {"BuildInfoNull", kInvalid, "info", [](Rig &) { return lasp_get_build_info(nullptr); }},
    {"BuildInfoSize", kStruct, "info|size",
     [](Rig &) {
       lasp_build_info info = LASP_BUILD_INFO_INIT;
       info.size = 1;
       return lasp_get_build_info(&info);
     }},
    {"GroupsNull", kInvalid, "groups", [](Rig &) { return lasp_groups_of_rank(8, 4, 1, 0, nullptr); }},
    {"GroupsWorld", kInvalid, "world_size", [](Rig &r) { return groups(r, 0, 1, 1, 0); }},
    {"GroupsRanks", kInvalid, "sequence_ranks", [](Rig &r) { return groups(r, 8, 0, 1, 0); }},
    {"GroupsDivide", kInvalid, "sequence_ranks", [](Rig &r) { return groups(r, 8, 3, 1, 0); }},
    {"GroupsStride", kInvalid, "stride", [](Rig &r) { return groups(r, 8, 4, 0, 0); }},
    {"GroupsStrideDivide", kInvalid, "stride", [](Rig &r) { return groups(r, 12, 2, 5, 0); }},
    {"GroupsRankBeyond", kInvalid, "world_rank", [](Rig &r) { return groups(r, 8, 4, 1, 8); }},
    {"GroupsRankNegative", kInvalid, "world_rank", [](Rig &r) { return groups(r, 8, 4, 1, -1); }},
    {"WorldRankNull", kInvalid, "world_rank", [](Rig &) { return lasp_groups_world_rank(8, 4, 1, 0, 0, nullptr); }},
    {"WorldRankGroup", kInvalid, "sequence_group", [](Rig &r) { return world_rank(r, 8, 4, 1, 2, 0); }},
    {"WorldRankRank", kInvalid, "sequence_rank", [](Rig &r) { return world_rank(r, 8, 4, 1, 0, 4); }},
    {"PredictNull", kInvalid, "predicted_us",
     [](Rig &) { return lasp_predict_exchange(LASP_SCHEDULE_RING, 4, 1, 0, 1, 1, nullptr); }},
    {"PredictSchedule", kInvalid, "schedule",
     [](Rig &r) { return predict(r, LASP_SCHEDULE_RELAY + 1, 4, 0, 1, 1); }},
    {"PredictRanks", kInvalid, "nranks", [](Rig &r) { return predict(r, LASP_SCHEDULE_RING, 0, 0, 1, 1); }},
    {"PredictPieces", kInvalid, "pieces", [](Rig &r) { return predict(r, LASP_SCHEDULE_ALL_SCAN, 4, -1, 1, 1); }},
    {"PredictLatency", kInvalid, "latency_us", [](Rig &r) { return predict(r, LASP_SCHEDULE_RING, 4, 0, -1, 1); }},
    {"PredictBandwidth", kInvalid, "bandwidth_gbs",
     [](Rig &r) { return predict(r, LASP_SCHEDULE_RING, 4, 0, 1, kNan); }},
};

}  // namespace

INSTANTIATE_TEST_SUITE_P(Comm, WrongCalls, testing::ValuesIn(kComm), name_of_row);
INSTANTIATE_TEST_SUITE_P(Context, WrongCalls, testing::ValuesIn(kContext), name_of_row);
INSTANTIATE_TEST_SUITE_P(Plan, WrongCalls, testing::ValuesIn(kPlan), name_of_row);
INSTANTIATE_TEST_SUITE_P(Helpers, WrongCalls, testing::ValuesIn(kHelpers), name_of_row);
